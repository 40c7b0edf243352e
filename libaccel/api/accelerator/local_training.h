// LocalTraining: what trains the copies of a model apart from each other, with a state in checkpoints.
//
// A ModelRuntime knows the one of its model, if any, so that checkpoints find it: shared_state() goes with the registered objects,
// own_state() with the random states of a rank.
//
// Threads:  the thread that trains.
#pragma once

#include <string_view>

#include <accel/accelerator.h>
#include <accel/state_dict.h>

namespace accel::detail {

class LocalTraining {
 public:
  virtual ~LocalTraining() = default;
  // The same on all ranks.
  [[nodiscard]] virtual Stateful& shared_state() noexcept = 0;
  // This rank's.
  [[nodiscard]] virtual Stateful& own_state() noexcept = 0;
  // A checkpoint was loaded: after its models and optimizers, what was loaded here gets to its place. Requires: every rank calls
  // it. Throws kPeerLost, kProcessGroup.
  virtual void take_loaded() = 0;
};

// Throw kUnsupported where ranks cannot train apart. name: "LocalSGD", in messages.
void refuse_divided(const Accelerator& accelerator, std::string_view name);
void refuse_steps_in_common(const Accelerator& accelerator, std::string_view name);

}  // namespace accel::detail
