// ModelSync: how the ranks keep one model in step; DdpReducer or ShardedModel.
//
// A forward that a synchronising backward will follow is bracketed by before_forward() and after_forward().
//
// Threads:  the thread that trains.
// Errors    throws kPeerLost, kProcessGroup, and what the implementation says.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace accel {

class ModelSync {
 public:
  virtual ~ModelSync() = default;

  virtual void before_forward() = 0;
  // Whether after_forward() needs the tensors that the forward returned.
  [[nodiscard]] virtual bool wants_outputs() const noexcept = 0;
  // What the forward gets in place of an argument; undefined: the argument itself.
  [[nodiscard]] virtual at::Tensor input(const at::Tensor&) const { return {}; }
  // May replace outputs by tensors of the same value, up to rounding.
  virtual void after_forward(std::vector<at::Tensor>& outputs) = 0;
  // Accelerator::backward() begins: after_backward() or abandon_backward() follows. Without it a backward is the program's own.
  virtual void begin_backward() noexcept {}
  // The loss's backward is done. Requires: every rank calls it.
  virtual void after_backward() = 0;
  // It ended with an exception.
  virtual void abandon_backward() noexcept {}

  // False: gradients stay local until it is true again. Returns what it was.
  virtual bool set_sync_in_backward(bool sync) noexcept = 0;
  // The next backward synchronises although its forward ran without. Undone by the caller with set_sync_in_backward().
  virtual void sync_next_backward() = 0;
};

}  // namespace accel
