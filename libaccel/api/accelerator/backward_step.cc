#include "libaccel/api/accelerator/backward_step.h"

#include <optional>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/stack.h>

#include "libaccel/engine/gradients/gradient_hooks.h"
#include "libaccel/engine/optim/gradient_clipping.h"
#include "libaccel/interception/state_staging.h"
#include "libaccel/tensors/parameter_list.h"

namespace accel::detail {
namespace {

std::vector<NamedParameter> stepped_parameters(const BackwardOptimizer& optimizer) {
  std::vector<NamedParameter> parameters;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params())
      if (parameter.requires_grad()) parameters.push_back({.name = {}, .tensor = parameter});
  }
  return parameters;
}

// Runs the backward; take(parameter) is called for each gradient, and lets go of it.
void run_backward(const std::vector<NamedParameter>& parameters,
                  const std::function<void()>& backward,
                  const std::function<void(at::Tensor&)>& take) {
  const GradientHooks hooks(parameters, [&](std::size_t index, const at::Tensor&) {
    const at::NoGradGuard no_grad;
    at::Tensor parameter = parameters[index].tensor;
    if (parameter.grad().defined()) take(parameter);
  });
  backward();
}

}  // namespace

void step_as_gradients_come(BackwardOptimizer& optimizer,
                            double learning_rate,
                            const std::function<void(bool is_followed)>& backward) {
  const std::vector<NamedParameter> parameters = stepped_parameters(optimizer);
  at::Tensor factor;  // undefined: 1
  if (const std::optional<double> max_norm = optimizer.clip_grad_norm()) {
    std::vector<at::Tensor> norms;
    run_backward(
        parameters,
        [&] { backward(/*is_followed=*/true); },
        [&](at::Tensor& parameter) {
          norms.push_back(at::norm(parameter.grad().to(at::kFloat), 2));
          parameter.mutable_grad().reset();
        });
    if (!norms.empty()) factor = clipping_factor(at::norm(at::stack(norms), 2), *max_norm);
  }
  optimizer.begin(learning_rate);
  run_backward(
      parameters,
      [&] { backward(/*is_followed=*/false); },
      [&](at::Tensor& parameter) {
        at::Tensor& gradient = parameter.mutable_grad();
        if (factor.defined()) gradient.mul_(factor);
        if (const auto most = optimizer.clip_grad_value()) gradient.clamp_(-*most, *most);
        before_state_is_written();
        optimizer.step_parameter(parameter);
      });
}

}  // namespace accel::detail
