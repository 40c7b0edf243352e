#include <memory>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros_like.h>

#include <accel/lion.h>

#include "libaccel/engine/optim/stepped_parameters.h"
#include "libaccel/tensors/checked_number.h"

namespace accel {
namespace {

const LionOptions& checked_lion_options(const LionOptions& options) {
  const auto [beta1, beta2] = options.betas();
  check_number(options.lr() >= 0, "lr", options.lr(), "0 or above");
  check_number(beta1 >= 0 && beta1 < 1, "the first of betas", beta1, "0 or above, and below 1");
  check_number(beta2 >= 0 && beta2 < 1, "the second of betas", beta2, "0 or above, and below 1");
  check_number(options.weight_decay() >= 0, "weight_decay", options.weight_decay(), "0 or above");
  return options;
}

}  // namespace

LionOptions::LionOptions(double lr) : lr_(lr) {}

Lion::Lion(const std::vector<torch::optim::OptimizerParamGroup>& groups, LionOptions defaults)
    : CheckpointedOptimizer(groups, std::make_unique<LionOptions>(checked_lion_options(defaults))) {
}

Lion::Lion(std::vector<at::Tensor> parameters, LionOptions defaults)
    : Lion({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

at::Tensor Lion::step(LossClosure closure) {
  const at::NoGradGuard no_grad;
  at::Tensor loss = loss_of(closure);
  for (auto& group : param_groups()) {
    const auto& options = static_cast<const LionOptions&>(group.options());
    const auto [beta1, beta2] = options.betas();
    step_each<LionState>(*this,
                         group,
                         "Lion",
                         [&](at::Tensor& parameter, const at::Tensor& gradient, LionState& state) {
                           if (!state.exp_avg().defined())
                             state.exp_avg(at::zeros_like(parameter, at::MemoryFormat::Preserve));
                           parameter.mul_(1 - options.lr() * options.weight_decay());
                           at::Tensor update = state.exp_avg() * beta1 + gradient * (1 - beta1);
                           parameter.add_(update.sign_(), -options.lr());
                           state.exp_avg().mul_(beta2).add_(gradient, 1 - beta2);
                         });
  }
  return loss;
}

}  // namespace accel
