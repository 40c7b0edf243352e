// SeesParameters: the parameters of prepared models that an object reads while a checkpoint is made or loaded.
//
// With a mixed precision policy no rank has the parameters in full precision. They are gathered for an object's state_dict() and
// load_state_dict(): all of them, unless the object names those that it needs.
//
//   struct Head : accel::Stateful, accel::SeesParameters {
//     std::vector<at::Tensor> parameters_seen() const override { return {head->weight}; }
//     ...
//   };
//
// Threads:  the thread that trains.
// Cost:     nothing for an object that names no parameter; otherwise the units of its parameters, whole, on the calling ranks: the
//           one that writes while a checkpoint is made, all while one is read.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/export.h>

namespace accel {

// For objects that are given to register_for_checkpointing().
class ACCEL_EXPORT SeesParameters {
 public:
  virtual ~SeesParameters() = default;
  // Parameters that the object's state_dict() reads, or its load_state_dict() reads or writes to; the same on every rank.
  // Others have their few bits meanwhile. Frozen parameters and buffers have full precision in any case. A tensor that is no
  // parameter and no buffer of a prepared model, such as a view or a detached one, is an error on all ranks, kInvalidArgument:
  // it would not get full precision. Asked only where a prepared model has a mixed precision policy, and no hook sees them all.
  [[nodiscard]] virtual std::vector<at::Tensor> parameters_seen() const = 0;
};

}  // namespace accel
