// StateDictType: the form in which the state of a sharded model or optimizer is returned or saved, with the names of Accelerate.
//
//   FULL_STATE_DICT      whole tensors by name, gathered on rank 0
//   SHARDED_STATE_DICT   this rank's part of each tensor
//   LOCAL_STATE_DICT     this rank's flat shards, as training has them
//
// Source:   docs/guides/sharding.md, "State dicts".
#pragma once

namespace accel {

// PyTorch's and Accelerate's numbers are higher by one.
enum class StateDictType { kFull, kLocal, kSharded };

struct StateDictConfig {
  bool offload_to_cpu =
      true;  // FULL: whole tensors are in memory of the CPU, for models on any device
  bool rank0_only =
      true;  // FULL: the other ranks get an empty dict; false: all ranks get everything
};

}  // namespace accel
