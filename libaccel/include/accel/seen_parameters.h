// SeesParameters: names the parameters of prepared models that an object reads during a save or a load.
//
// With a mixed precision policy no rank has the parameters in full precision. libaccel gathers them for an object's state_dict() and
// load_state_dict(): all of them, unless the object names the ones that it needs.
//
//   struct Head : accel::Stateful, accel::SeesParameters {
//     std::vector<at::Tensor> parameters_seen() const override { return {head->weight}; }
//     ...
//   };
//
// Threads:  the thread that trains.
// Cost:     nothing for an object that names no parameter; otherwise the whole units of its parameters: during a save on the writing
//           rank, during a load on all ranks.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/export.h>

namespace accel {

// For objects of register_for_checkpointing().
class ACCEL_EXPORT SeesParameters {
 public:
  virtual ~SeesParameters() = default;
  // Returns the parameters that state_dict() reads and that load_state_dict() reads or writes to; the same on every rank. Other
  // parameters keep their 16 bits. Frozen parameters and buffers always have full precision. A tensor that is neither a parameter
  // nor a buffer of a prepared model, such as a view or a detached copy, is kInvalidArgument on all ranks, because it would not
  // get full precision. Called only if a prepared model has a mixed precision policy and no hook reads all parameters.
  [[nodiscard]] virtual std::vector<at::Tensor> parameters_seen() const = 0;
};

}  // namespace accel
