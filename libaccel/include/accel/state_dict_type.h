// StateDictType: the form of a sharded model's or optimizer's state when it is handed over or saved, with the names of Accelerate.
//
//   FULL_STATE_DICT      whole tensors by name, gathered on rank 0
//   SHARDED_STATE_DICT   of each tensor the part that this rank has
//   LOCAL_STATE_DICT     this rank's flat shards, as training has them
//
// Source:   docs/guides/sharding.md, "State dicts".
#pragma once

namespace accel {

// The numbers of PyTorch and Accelerate are one higher.
enum class StateDictType { kFull, kLocal, kSharded };

struct StateDictConfig {
  bool offload_to_cpu =
      true;  // FULL: whole tensors come in memory of the CPU, whatever device the model is on
  bool rank0_only = true;  // FULL: the other ranks get an empty dict; false: all get all
};

}  // namespace accel
