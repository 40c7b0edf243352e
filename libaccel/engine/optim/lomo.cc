#include <cmath>
#include <memory>
#include <string>
#include <typeinfo>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Type.h>

#include <accel/error.h>
#include <accel/lomo.h>

#include "libaccel/engine/optim/stepped_parameters.h"
#include "libaccel/tensors/checked_number.h"
#include "libaccel/tensors/state_reader.h"

namespace accel {
namespace {

template <typename Options>
const Options& checked_lomo_options(const Options& options) {
  check_number(options.lr() >= 0, "lr", options.lr(), "0 or above");
  check_number(options.weight_decay() >= 0, "weight_decay", options.weight_decay(), "0 or above");
  const double norm = options.clip_grad_norm().value_or(1);
  check_number(norm > 0, "clip_grad_norm", norm, "a norm above 0");
  const double value = options.clip_grad_value().value_or(1);
  check_number(value > 0, "clip_grad_value", value, "a number above 0");
  if (options.clip_grad_norm() && options.clip_grad_value()) {
    throw Error(ErrorCode::kInvalidArgument,
                "clip_grad_norm and clip_grad_value are both set",
                "leave one of them out");
  }
  return options;
}

template <typename Options>
void set_rates(torch::optim::Optimizer& optimizer, double learning_rate) {
  check_number(learning_rate >= 0, "learning_rate", learning_rate, "0 or above");
  for (auto& group : optimizer.param_groups())
    static_cast<Options&>(group.options()).lr(learning_rate);
}

template <typename Options>
const Options& first_options(const torch::optim::Optimizer& optimizer) {
  return static_cast<const Options&>(optimizer.param_groups().front().options());
}

// The options of the group that has the parameter.
template <typename Options>
const Options& group_options(const torch::optim::Optimizer& optimizer,
                             const at::Tensor& parameter) {
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& each : group.params())
      if (each.is_same(parameter)) return static_cast<const Options&>(group.options());
  }
  throw Error(ErrorCode::kInternal, "a parameter to be stepped is in no group of its optimizer");
}

// In fp32, for this step alone.
at::Tensor taken_gradient(at::Tensor& parameter) {
  at::Tensor gradient = parameter.grad().to(at::kFloat);
  parameter.mutable_grad().reset();
  return gradient;
}

at::Tensor root_mean_square(const at::Tensor& values) {
  return at::norm(values, 2).div(std::sqrt(static_cast<double>(values.numel())));
}

// Of the second moment: what the gradient is multiplied by.
at::Tensor inverse_root(AdaLomoState& state, const at::Tensor& squares, double beta2) {
  const auto average = [beta2](at::Tensor& average, const at::Tensor& next) {
    if (!average.defined()) average = at::zeros(next.sizes(), next.options());
    average.mul_(beta2).add_(next, 1.0 - beta2);
  };
  if (squares.dim() < 2) {
    average(state.exp_avg_sq(), squares);
    return state.exp_avg_sq().rsqrt();
  }
  at::Tensor& row = state.exp_avg_sq_row();
  at::Tensor& column = state.exp_avg_sq_col();
  average(row, squares.mean(-1));
  average(column, squares.mean(-2));
  return at::mul((row / row.mean(-1, /*keepdim=*/true)).rsqrt_().unsqueeze(-1),
                 column.unsqueeze(-2).rsqrt());
}

constexpr const char* kStepsKey = "step_num";

std::string field_key(std::size_t group, std::size_t place, const char* field) {
  return std::to_string(group) + "." + std::to_string(place) + "." + field;
}

// Calls call(key, tensor) for each field of the state of each parameter.
template <typename Call>
void for_each_field(torch::optim::Optimizer& optimizer, Call call) {
  for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    const std::vector<at::Tensor>& parameters = optimizer.param_groups()[g].params();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      auto& state = state_of<AdaLomoState>(optimizer, parameters[i]);
      call(field_key(g, i, "exp_avg_sq"), state.exp_avg_sq());
      call(field_key(g, i, "exp_avg_sq_row"), state.exp_avg_sq_row());
      call(field_key(g, i, "exp_avg_sq_col"), state.exp_avg_sq_col());
    }
  }
}

}  // namespace

at::Tensor BackwardOptimizer::step(LossClosure /*closure*/) {
  throw Error(ErrorCode::kUnsupported,
              c10::demangle(typeid(*this).name()) + " steps in the backward, and has no step()",
              "prepare() it, and call backward(loss, {.learning_rate = ...}) of the Accelerator");
}

LomoOptions::LomoOptions(double lr) : lr_(lr) {}
AdaLomoOptions::AdaLomoOptions(double lr) : lr_(lr) {}

Lomo::Lomo(const std::vector<torch::optim::OptimizerParamGroup>& groups, LomoOptions defaults)
    : BackwardOptimizer(groups, std::make_unique<LomoOptions>(checked_lomo_options(defaults))) {}

Lomo::Lomo(std::vector<at::Tensor> parameters, LomoOptions defaults)
    : Lomo({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

void Lomo::begin(double learning_rate) {
  set_rates<LomoOptions>(*this, learning_rate);
}

void Lomo::step_parameter(at::Tensor& parameter) {
  const at::NoGradGuard no_grad;
  const LomoOptions& options = group_options<LomoOptions>(*this, parameter);
  const at::Tensor gradient = taken_gradient(parameter);
  at::Tensor values = parameter.data().to(at::kFloat);
  if (options.weight_decay() > 0) values.mul_(1.0 - options.lr() * options.weight_decay());
  values.add_(gradient, -options.lr());
  parameter.data().copy_(values);
}

std::optional<double> Lomo::clip_grad_norm() const {
  return first_options<LomoOptions>(*this).clip_grad_norm();
}

std::optional<double> Lomo::clip_grad_value() const {
  return first_options<LomoOptions>(*this).clip_grad_value();
}

AdaLomo::AdaLomo(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                 AdaLomoOptions defaults)
    : BackwardOptimizer(groups, std::make_unique<AdaLomoOptions>(checked_lomo_options(defaults))) {}

AdaLomo::AdaLomo(std::vector<at::Tensor> parameters, AdaLomoOptions defaults)
    : AdaLomo({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

void AdaLomo::begin(double learning_rate) {
  set_rates<AdaLomoOptions>(*this, learning_rate);
  ++num_steps_;
}

void AdaLomo::step_parameter(at::Tensor& parameter) {
  const at::NoGradGuard no_grad;
  const AdaLomoOptions& options = group_options<AdaLomoOptions>(*this, parameter);
  const auto [eps_of_squares, least_scale] = options.eps();
  const at::Tensor gradient = taken_gradient(parameter);
  const double beta2 = 1.0 - std::pow(static_cast<double>(num_steps_), options.decay_rate());
  const at::Tensor squares = gradient.square() + eps_of_squares;
  at::Tensor update =
      inverse_root(state_of<AdaLomoState>(*this, parameter), squares, beta2).mul_(gradient);
  update.div_(root_mean_square(update).div_(options.clip_threshold()).clamp_min_(1.0));
  at::Tensor values = parameter.data().to(at::kFloat);
  const at::Tensor rate = root_mean_square(values).clamp_min_(least_scale).mul_(options.lr());
  if (options.weight_decay() > 0) values.mul_(1.0 - rate * options.weight_decay());
  values.add_(update, -rate.item<double>());
  parameter.data().copy_(values);
}

std::optional<double> AdaLomo::clip_grad_norm() const {
  return first_options<AdaLomoOptions>(*this).clip_grad_norm();
}

std::optional<double> AdaLomo::clip_grad_value() const {
  return first_options<AdaLomoOptions>(*this).clip_grad_value();
}

StateDict AdaLomo::state_dict() const {
  StateDict state;
  state.values[kStepsKey] = num_steps_;
  for_each_field(const_cast<AdaLomo&>(*this), [&](const std::string& key, at::Tensor& tensor) {
    if (tensor.defined()) state.tensors[key] = tensor;
  });
  return state;
}

void AdaLomo::load_state_dict(const StateDict& state) {
  num_steps_ = StateReader("AdaLomo", state).integer(kStepsKey);
  for_each_field(*this, [&](const std::string& key, at::Tensor& tensor) {
    const auto found = state.tensors.find(key);
    tensor = found == state.tensors.end() ? at::Tensor() : found->second.clone();
  });
}

}  // namespace accel
