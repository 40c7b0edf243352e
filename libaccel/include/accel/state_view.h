// StateView: the state of a prepared model or optimizer by name, whole or this rank's part of it.
//
//   const accel::StateView state = accelerator.get_state_dict(model);                      // on rank 0, whole
//   const accel::StateView own = accelerator.get_state_dict(model, accel::StateDictType::kSharded);
//   for (const auto& [name, part] : own.tensors) use(name, part.shape, part.begin, part.values);
//
// A part is a range of the elements of a tensor. The parts of all ranks (of one replica, under HYBRID_SHARD) make the whole.
//
// Memory:   with a plugin (FSDP, ZeRO) FULL holds copies, for every strategy. Otherwise it is the memory of the model and its
//           optimizer, which the next step changes: clone tensors that you keep. Do not write to it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/state_dict_type.h>

namespace accel {

struct StateTensor {
  at::Tensor values;                // whole: in its shape; else [n], the elements from `begin` on
  std::vector<std::int64_t> shape;  // of the whole tensor
  // A range in the whole tensor: elements are counted in the order of its memory. That is row-major order, except for layouts
  // such as channels_last.
  std::vector<std::int64_t> strides;
  std::int64_t begin = 0;
  bool is_whole = true;
};

struct StateView {
  StateDictType type = StateDictType::kFull;
  // By the names of the model; fields of an optimizer as <parameter>.<field>. LOCAL: the shard of unit k is unit_<k>, for an
  // optimizer unit_<k>.<field>, with zeros where there is no parameter; undivided tensors have their own names.
  std::map<std::string, StateTensor> tensors;
  // For an optimizer: its type, its numbers and its parameter groups, as in optimizer.json of a checkpoint. Empty if `tensors` is
  // empty because another rank has everything.
  std::string json;
};

}  // namespace accel
