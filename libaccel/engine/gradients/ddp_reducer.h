// DdpReducer: averages the gradients of one model over the ranks while backward still runs.
//
// Owns GradientBuckets where ranks share memory and all gradients are dense and of real numbers; else, and with
// find_unused_parameters, static_graph or without gradient_as_bucket_view, a c10d::Reducer. Both pack gradients into
// buckets, all-reduce a bucket as soon as it is full, and give the same bits, but for gradients that zero_grad(false) keeps
// on a number of ranks that is no power of two. A forward that will be followed by a synchronising
// backward is bracketed by before_forward() and after_forward().
//
// Threads:  the thread that trains; LibTorch calls back from its backward threads.
// Cost:     one copy of all gradients; with gradient_as_bucket_view the gradients are that copy.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/accelerator_options.h>

#include "libaccel/engine/gradients/model_sync.h"
#include "libaccel/engine/process/process_group.h"

namespace torch::nn {
class Module;
}

namespace accel {

class DdpReducer final : public ModelSync {
 public:
  // Whether rank 0's values have to be sent to the others first.
  enum class FirstState { kIsSent, kIsEqual };

  // Checks that every rank has the same parameters, frozen ones too, and buffers, and sends rank 0's to
  // all. Throws kShapeMismatch on every rank, naming the first tensor that differs and the rank;
  // kPeerLost, kProcessGroup. Requires: every rank calls it; at least one parameter that requires a
  // gradient.
  DdpReducer(const torch::nn::Module& module,
             std::shared_ptr<ProcessGroup> group,
             const DistributedDataParallelKwargs& options,
             FirstState first_state = FirstState::kIsSent);
  ~DdpReducer() override;

  // Throws kInvalidArgument naming the parameters without a gradient when the backward before did
  // not complete; kUnsupported naming a parameter that was registered or unfrozen since; kPeerLost or kProcessGroup.
  void before_forward() override;

  [[nodiscard]] bool wants_outputs() const noexcept override;
  void after_forward(std::vector<at::Tensor>& outputs) override;
  // The last bucket has waited for all.
  void after_backward() override {}
  // The next forward with gradients begins with new buckets. Requires: the backward ended so on every rank, at the same place.
  void abandon_backward() noexcept override;

  bool set_sync_in_backward(bool sync) noexcept override;
  void sync_next_backward() override;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // shared with the autograd nodes that outlive a forward
};

}  // namespace accel
