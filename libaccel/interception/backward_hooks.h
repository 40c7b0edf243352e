// BackwardHooks: who is called while a backward runs and at its end, beside the hooks of the program.
//
// Threads:  hooks are put and taken away by the thread that trains, outside of a backward; called by LibTorch's thread of the
//           backward, one at a time. What they throw ends the backward.
#pragma once

#include <functional>
#include <utility>

#include <ATen/core/Tensor.h>

namespace accel::interception {

// Whether this thread runs a node of a backward, and no forward within it.
[[nodiscard]] bool is_in_backward() noexcept;

// While it lives, what runs on its thread is a forward, once more within a backward.
class ForwardAgain {
 public:
  ForwardAgain() noexcept;
  ~ForwardAgain();
  ForwardAgain(const ForwardAgain&) = delete;
  ForwardAgain& operator=(const ForwardAgain&) = delete;

 private:
  bool was_on_;
};

// Once, behind what was asked for before, when the backward that this thread is in has computed all gradients. From such a
// callback: behind all others.
void call_at_end_of_backward(std::function<void()> callback);
// The same; in its place, on_exception where an exception ends the backward: LibTorch calls nobody then. Before who has called
// backward() sees the exception; it must not throw.
void call_at_end_of_backward(std::function<void()> callback, std::function<void()> on_exception);

// A hook at a parameter, taken away at this object's end.
class GradientHook {
 public:
  explicit GradientHook(std::function<void()> take_away) : take_away_(std::move(take_away)) {}
  GradientHook(GradientHook&& other) noexcept
      : take_away_(std::exchange(other.take_away_, nullptr)) {}
  GradientHook& operator=(GradientHook&&) = delete;
  ~GradientHook() {
    if (take_away_) take_away_();
  }

 private:
  std::function<void()> take_away_;
};

// Before a gradient is added up, among the program's hooks on the tensor. arriving: what autograd has made; may be undefined.
[[nodiscard]] GradientHook before_adding(const at::Tensor& parameter,
                                         std::function<void(const at::Tensor& arriving)> call);

// Replaces gradients by zeros before they are added up, among the program's hooks on the tensor.
[[nodiscard]] GradientHook clearing_arriving(const at::Tensor& parameter);

// As soon as it is added up, and behind the program's PostAccumulateGradHook: at the node that adds up, in the order in which
// they were put there. arrived: what autograd has made the gradient of, or added to it; may be undefined.
[[nodiscard]] GradientHook behind_adding(const at::Tensor& parameter,
                                         std::function<void(const at::Tensor& arrived)> call);

}  // namespace accel::interception
