#include "libaccel/api/accelerator/outer_fragment.h"

#include <sstream>
#include <utility>
#include <variant>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/lerp.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

#include <accel/error.h>

#include "libaccel/engine/checkpoint/states/optimizer_state.h"
#include "libaccel/interception/state_staging.h"
#include "libaccel/tensors/state_reader.h"

namespace accel {

OuterOptimizer outer_sgd(double lr, double momentum) {
  return [lr, momentum](std::vector<at::Tensor> parameters) {
    return std::make_shared<torch::optim::SGD>(
        std::move(parameters),
        torch::optim::SGDOptions(lr).momentum(momentum).nesterov(momentum > 0));
  };
}

}  // namespace accel

namespace accel::detail {
namespace {

using checkpoint::ParameterNames;
using checkpoint::SavedOptimizer;

at::ScalarType wide_type(at::ScalarType dtype) {
  return c10::promoteTypes(dtype, at::kFloat);
}

std::string in_fragment(const std::string& prefix, const NamedParameter& parameter) {
  return prefix + "global." + parameter.name;
}

}  // namespace

OuterFragment::OuterFragment(std::vector<NamedParameter> parameters,
                             const OuterOptimizer& make_optimizer)
    : parameters_(std::move(parameters)), exchanged_(at::kFloat) {
  for (const NamedParameter& parameter : parameters_) {
    const at::ScalarType dtype = parameter.tensor.scalar_type();
    if (!at::isFloatingType(dtype)) {
      throw Error(ErrorCode::kUnsupported,
                  "the parameter " + parameter.name + " has the type " + c10::toString(dtype) +
                      ", and DiLoCo averages floating point numbers alone",
                  "freeze it with set_requires_grad(false)");
    }
    exchanged_ = c10::promoteTypes(exchanged_, dtype);
    globals_.push_back(
        parameter.tensor.detach().to(wide_type(dtype), /*non_blocking=*/false, /*copy=*/true));
  }
  if (make_optimizer) optimizer_ = make_optimizer(globals_);
  if (optimizer_ != nullptr) return;
  throw Error(ErrorCode::kInvalidArgument,
              "DiLoCoOptions.outer_optimizer makes no optimizer",
              "return one for the parameters that it is given, or leave it out");
}

at::Tensor OuterFragment::outer_gradient() const {
  std::vector<at::Tensor> differences;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor own = parameters_[i].tensor.detach().to(globals_[i].scalar_type());
    differences.push_back((globals_[i] - own).to(exchanged_).flatten());
  }
  return at::cat(differences);
}

void OuterFragment::merge(const at::Tensor& outer_gradient, double alpha) {
  before_state_is_written();
  std::int64_t offset = 0;
  for (at::Tensor& global : globals_) {
    global.mutable_grad() = outer_gradient.narrow(0, offset, global.numel())
                                .view(global.sizes())
                                .to(global.scalar_type());
    offset += global.numel();
  }
  optimizer_->step();
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    globals_[i].mutable_grad().reset();
    at::Tensor& own = parameters_[i].tensor;
    // What a rank has is not looked at for nothing: it may be NaN.
    own.copy_(alpha == 0 ? globals_[i]
                         : at::lerp(globals_[i], own.to(globals_[i].scalar_type()), alpha));
  }
}

void OuterFragment::reset_parameters() {
  before_state_is_written();
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].tensor.copy_(globals_[i]);
}

std::string OuterFragment::describe_optimizer() const {
  return checkpoint::save_optimizer(*optimizer_, ParameterNames({})).json;
}

void OuterFragment::save(const std::string& prefix, StateDict& state) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    state.tensors[in_fragment(prefix, parameters_[i])] = globals_[i];
  save_optimizer_to(prefix + "outer.", *optimizer_, {}, state);
}

std::function<void()> OuterFragment::prepare_load(const std::string& prefix,
                                                  const StateDict& state) {
  const StateReader reader("DiLoCo", state);
  std::vector<std::function<void()>> actions;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const std::string name = in_fragment(prefix, parameters_[i]);
    actions.push_back(prepare_copy(name, globals_[i], reader.tensor(name)));
  }
  actions.push_back(prepare_optimizer_load_from(
      prefix + "outer.", *optimizer_, {}, state, "the outer optimizer of " + prefix));
  return [actions = std::move(actions)] {
    for (const auto& action : actions) action();
  };
}

void save_optimizer_to(const std::string& prefix,
                       torch::optim::Optimizer& optimizer,
                       const std::vector<torch::nn::Module*>& models,
                       StateDict& state) {
  SavedOptimizer saved = checkpoint::save_optimizer(optimizer, ParameterNames(models));
  for (auto& [name, tensor] : saved.tensors) state.tensors[prefix + name] = std::move(tensor);
  state.values[prefix] = std::move(saved.json);
}

std::function<void()> prepare_optimizer_load_from(const std::string& prefix,
                                                  torch::optim::Optimizer& optimizer,
                                                  const std::vector<torch::nn::Module*>& models,
                                                  const StateDict& state,
                                                  const std::string& what) {
  SavedOptimizer saved;
  const auto found = state.values.find(prefix);
  const auto* const text =
      found == state.values.end() ? nullptr : std::get_if<std::string>(&found->second);
  if (text == nullptr)
    throw Error(ErrorCode::kCheckpointMismatch, "the state of DiLoCo has no '" + prefix + "'");
  saved.json = *text;
  for (const auto& [name, tensor] : state.tensors)
    if (name.starts_with(prefix)) saved.tensors.emplace(name.substr(prefix.size()), tensor);
  return checkpoint::prepare_optimizer_load(
      optimizer, ParameterNames(models), std::move(saved), what);
}

std::function<void()> prepare_copy(const std::string& name,
                                   const at::Tensor& target,
                                   const at::Tensor& saved) {
  if (saved.sizes() != target.sizes()) {
    std::ostringstream text;
    text << "'" << name << "' in the state of DiLoCo has the shape " << saved.sizes()
         << ", expected " << target.sizes();
    throw Error(ErrorCode::kCheckpointMismatch, text.str());
  }
  return [target, saved] {
    const at::NoGradGuard no_grad;
    target.copy_(saved);
  };
}

}  // namespace accel::detail
