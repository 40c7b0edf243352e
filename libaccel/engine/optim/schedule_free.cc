// In train mode the parameters are y = beta x + (1 - beta) z, in eval mode x; both are one lerp away from the other with z. A
// step moves z by the rate along the gradient, and x towards z by c, the weight of this step among all; written for y:
//
//   y <- (1 - c) y + c z + rate (beta (1 - c) - 1) g

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros_like.h>

#include <accel/schedule_free.h>

#include "libaccel/engine/optim/stepped_parameters.h"
#include "libaccel/tensors/checked_number.h"

namespace accel {
namespace {

double averaging_of(const AdamWScheduleFreeOptions& options) {
  return std::get<0>(options.betas());
}

double averaging_of(const SGDScheduleFreeOptions& options) {
  return options.momentum();
}

template <typename Options>
const Options& checked_averaging_options(const Options& options) {
  const double averaging = averaging_of(options);
  check_number(options.lr() >= 0, "lr", options.lr(), "0 or above");
  check_number(options.weight_decay() >= 0, "weight_decay", options.weight_decay(), "0 or above");
  check_number(averaging > 0 && averaging < 1,
               "the momentum (the first of betas)",
               averaging,
               "above 0 and below 1");
  check_number(options.warmup_steps() >= 0,
               "warmup_steps",
               static_cast<double>(options.warmup_steps()),
               "0 or more");
  return options;
}

void refuse_eval_mode(const ScheduleFreeProgress& progress) {
  if (progress.train_mode) return;
  throw Error(ErrorCode::kInvalidArgument,
              "a schedule-free optimizer was to step in eval mode",
              "call optimizer.train() before the first step, and after each evaluation");
}

struct StepSizes {
  double rate;
  double weight;  // of this step in the average, 0 to 1
};

// Those of the next step, which the progress then has made.
template <typename Options>
StepSizes advance_progress(Options& options) {
  ScheduleFreeProgress& progress = options.progress();
  const double k = static_cast<double>(progress.k) + 1;
  const auto warmup = static_cast<double>(options.warmup_steps());
  const double rate = options.lr() * (k <= warmup ? k / warmup : 1.0);
  progress.scheduled_lr = rate;
  progress.lr_max = std::max(rate, progress.lr_max);
  const double weight =
      std::pow(k, options.r()) * std::pow(progress.lr_max, options.weight_lr_power());
  progress.weight_sum += weight;
  ++progress.k;
  return {rate, progress.weight_sum == 0 ? 0 : weight / progress.weight_sum};
}

// Of y and z, by a gradient with its decay.
void move_weights(
    at::Tensor& y, at::Tensor& z, const at::Tensor& gradient, StepSizes sizes, double beta) {
  y.lerp_(z, sizes.weight);
  y.add_(gradient, sizes.rate * (beta * (1 - sizes.weight) - 1));
  z.sub_(gradient, sizes.rate);
}

template <typename Options, typename State>
void set_train_mode(torch::optim::Optimizer& optimizer, bool trains) {
  const at::NoGradGuard no_grad;
  for (auto& group : optimizer.param_groups()) {
    auto& options = static_cast<Options&>(group.options());
    if (options.progress().train_mode == trains) continue;
    options.progress().train_mode = trains;
    const double beta = averaging_of(options);
    for (at::Tensor& parameter : group.params()) {
      const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (state == optimizer.state().end()) continue;
      const at::Tensor& z = static_cast<const State&>(*state->second).z();
      parameter.lerp_(z, trains ? 1 - beta : 1 - 1 / beta);
    }
  }
}

}  // namespace

AdamWScheduleFreeOptions::AdamWScheduleFreeOptions(double lr) : lr_(lr) {}
SGDScheduleFreeOptions::SGDScheduleFreeOptions(double lr) : lr_(lr) {}

AdamWScheduleFree::AdamWScheduleFree(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                                     AdamWScheduleFreeOptions defaults)
    : CheckpointedOptimizer(
          groups, std::make_unique<AdamWScheduleFreeOptions>(checked_averaging_options(defaults))) {
}

AdamWScheduleFree::AdamWScheduleFree(std::vector<at::Tensor> parameters,
                                     AdamWScheduleFreeOptions defaults)
    : AdamWScheduleFree({torch::optim::OptimizerParamGroup(std::move(parameters))},
                        std::move(defaults)) {}

at::Tensor AdamWScheduleFree::step(LossClosure closure) {
  const at::NoGradGuard no_grad;
  at::Tensor loss = loss_of(closure);
  for (auto& group : param_groups()) {
    auto& options = static_cast<AdamWScheduleFreeOptions&>(group.options());
    refuse_eval_mode(options.progress());
    const auto [beta1, beta2] = options.betas();
    const StepSizes sizes = advance_progress(options);
    const double correction = 1 - std::pow(beta2, static_cast<double>(options.progress().k));
    step_each<AdamWScheduleFreeState>(
        *this,
        group,
        "AdamWScheduleFree",
        [&, beta1 = beta1, beta2 = beta2](
            at::Tensor& y, const at::Tensor& gradient, AdamWScheduleFreeState& state) {
          if (!state.z().defined()) {
            state.z(y.detach().clone(at::MemoryFormat::Preserve));
            state.exp_avg_sq(at::zeros_like(y, at::MemoryFormat::Preserve));
          }
          state.exp_avg_sq().mul_(beta2).addcmul_(gradient, gradient, 1 - beta2);
          const at::Tensor divisor = state.exp_avg_sq().div(correction).sqrt_().add_(options.eps());
          at::Tensor direction = gradient.div(divisor);
          if (options.weight_decay() != 0) direction.add_(y, options.weight_decay());
          move_weights(y, state.z(), direction, sizes, beta1);
        });
  }
  return loss;
}

void AdamWScheduleFree::train() {
  set_train_mode<AdamWScheduleFreeOptions, AdamWScheduleFreeState>(*this, true);
}

void AdamWScheduleFree::eval() {
  set_train_mode<AdamWScheduleFreeOptions, AdamWScheduleFreeState>(*this, false);
}

SGDScheduleFree::SGDScheduleFree(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                                 SGDScheduleFreeOptions defaults)
    : CheckpointedOptimizer(
          groups, std::make_unique<SGDScheduleFreeOptions>(checked_averaging_options(defaults))) {}

SGDScheduleFree::SGDScheduleFree(std::vector<at::Tensor> parameters,
                                 SGDScheduleFreeOptions defaults)
    : SGDScheduleFree({torch::optim::OptimizerParamGroup(std::move(parameters))},
                      std::move(defaults)) {}

at::Tensor SGDScheduleFree::step(LossClosure closure) {
  const at::NoGradGuard no_grad;
  at::Tensor loss = loss_of(closure);
  for (auto& group : param_groups()) {
    auto& options = static_cast<SGDScheduleFreeOptions&>(group.options());
    refuse_eval_mode(options.progress());
    const StepSizes sizes = advance_progress(options);
    step_each<SGDScheduleFreeState>(
        *this,
        group,
        "SGDScheduleFree",
        [&](at::Tensor& y, const at::Tensor& gradient, SGDScheduleFreeState& state) {
          if (!state.z().defined()) state.z(y.detach().clone(at::MemoryFormat::Preserve));
          const at::Tensor direction =
              options.weight_decay() == 0 ? gradient : gradient.add(y, options.weight_decay());
          move_weights(y, state.z(), direction, sizes, options.momentum());
        });
  }
  return loss;
}

void SGDScheduleFree::train() {
  set_train_mode<SGDScheduleFreeOptions, SGDScheduleFreeState>(*this, true);
}

void SGDScheduleFree::eval() {
  set_train_mode<SGDScheduleFreeOptions, SGDScheduleFreeState>(*this, false);
}

}  // namespace accel
