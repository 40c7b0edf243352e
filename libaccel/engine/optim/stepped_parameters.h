// SteppedParameters: the parameters of a group that have a gradient, with their states, for steps that go one by one.
//
// Threads:  as torch::optim::Optimizer.
#pragma once

#include <memory>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

#include <accel/error.h>

namespace accel {

// The state of a parameter, made at its first step.
template <typename State>
State& state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  auto& state = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (state == nullptr) state = std::make_unique<State>();
  return static_cast<State&>(*state);
}

// Calls step(parameter, gradient, state). name: of the class. Throws kUnsupported for a gradient that is sparse.
template <typename State, typename Step>
void step_each(torch::optim::Optimizer& optimizer,
               torch::optim::OptimizerParamGroup& group,
               const char* name,
               Step step) {
  for (at::Tensor& parameter : group.params()) {
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    if (gradient.is_sparse()) {
      throw Error(ErrorCode::kUnsupported,
                  std::string(name) + " got a sparse gradient, which it does not step by",
                  "construct the embedding with sparse(false), or give it an optimizer of its own");
    }
    step(parameter, gradient, state_of<State>(optimizer, parameter));
  }
}

// What a closure returns, with gradients on.
inline at::Tensor loss_of(const torch::optim::Optimizer::LossClosure& closure) {
  if (closure == nullptr) return {};
  const at::AutoGradMode with_gradients(true);
  return closure();
}

}  // namespace accel
