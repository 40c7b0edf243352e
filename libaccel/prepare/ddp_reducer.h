// DdpReducer: averages the gradients of one model over the ranks while backward still runs.
//
// Owns a c10d::Reducer. Gradients are packed into buckets in the order in which backward makes
// them; a full bucket is all-reduced at once. A forward that will be followed by a synchronising
// backward is bracketed by before_forward() and after_forward().
//
// Threads:  the thread that trains; LibTorch calls back from its backward threads.
// Cost:     one copy of all gradients; with gradient_as_bucket_view the gradients are that copy.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/accelerator_options.h>

#include "libaccel/process/process_group.h"

namespace torch::nn {
class Module;
}

namespace accel {

class DdpReducer {
 public:
  // Checks that every rank has the same parameters and sends rank 0's parameters and buffers to
  // all. Throws kShapeMismatch on every rank, naming the first parameter that differs and the rank;
  // kPeerLost, kProcessGroup. Requires: every rank calls it; at least one parameter that requires a
  // gradient.
  DdpReducer(const torch::nn::Module& module,
             std::shared_ptr<ProcessGroup> group,
             const DistributedDataParallelKwargs& options);
  ~DdpReducer();

  // Throws kInvalidArgument naming the parameters without a gradient when the backward before did
  // not complete, kPeerLost or kProcessGroup.
  void before_forward();

  // Whether after_forward() needs the tensors that the forward returned.
  [[nodiscard]] bool wants_outputs() const noexcept;
  // May replace outputs by tensors of the same value.
  void after_forward(std::vector<at::Tensor>& outputs);

  // False: gradients stay local until it is true again. Returns what it was.
  bool set_sync_in_backward(bool sync) noexcept;
  // The next backward synchronises although its forward ran without. Undone by the caller with
  // set_sync_in_backward().
  void sync_next_backward();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // shared with the autograd nodes that outlive a forward
};

}  // namespace accel
