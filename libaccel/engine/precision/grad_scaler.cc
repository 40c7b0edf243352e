#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <torch/optim/optimizer.h>

#include <accel/error.h>
#include <accel/precision.h>

#include "libaccel/tensors/checked_number.h"
#include "libaccel/tensors/state_reader.h"
#include "libaccel/tensors/unique_parameters.h"

namespace accel {
namespace {

void check_kwargs(const GradScalerKwargs& options) {
  // The scale is kept as a float.
  const bool has_scale =
      options.init_scale > 0 && options.init_scale <= std::numeric_limits<float>::max();
  check_number(has_scale, "init_scale", options.init_scale, "a number above 0 that fp32 holds");
  check_number(options.growth_factor > 1.0 && std::isfinite(options.growth_factor),
               "growth_factor",
               options.growth_factor,
               "a finite number above 1");
  check_number(options.backoff_factor > 0.0 && options.backoff_factor < 1.0,
               "backoff_factor",
               options.backoff_factor,
               "a number between 0 and 1");
  if (options.growth_interval <= 0) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "growth_interval is " + std::to_string(options.growth_interval) + ", expected at least 1");
  }
  check_number(options.min_scale >= 0 && std::isfinite(options.min_scale),
               "min_scale",
               options.min_scale,
               "a finite number from 0 on");
  if (options.hysteresis < 1)
    throw Error(ErrorCode::kInvalidArgument,
                "hysteresis is " + std::to_string(options.hysteresis) + ", expected at least 1");
}

// The defined gradients of an optimizer by type; sparse ones by their values.
std::map<at::ScalarType, std::vector<at::Tensor>> gradients_by_type(
    const torch::optim::Optimizer& optimizer) {
  std::map<at::ScalarType, std::vector<at::Tensor>> by_type;
  for (const auto& group : unique_groups(optimizer)) {
    for (const at::Tensor& parameter : group) {
      const at::Tensor& grad = parameter.grad();
      if (!grad.defined()) continue;
      if (grad.scalar_type() == at::kHalf) {
        throw Error(ErrorCode::kInvalidArgument,
                    "a gradient is fp16; the scaler cannot unscale it",
                    "keep the parameters in fp32 and let autocast choose fp16 inside the forward");
      }
      by_type[grad.scalar_type()].push_back(grad.is_sparse() ? grad._values() : grad);
    }
  }
  return by_type;
}

}  // namespace

GradScaler::GradScaler(GradScalerKwargs options, c10::Device device)
    : options_(options), hysteresis_left_(options.hysteresis) {
  check_kwargs(options_);
  scale_ = at::full({}, options_.init_scale, at::TensorOptions(at::kFloat).device(device));
  growth_tracker_ = at::full({}, 0, at::TensorOptions(at::kInt).device(device));
}

at::Tensor GradScaler::scale(const at::Tensor& loss) {
  if (!options_.enabled) return loss;
  used_scale_ = scale_;
  return loss * scale_;
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) return;
  OptimizerState& state = states_[&optimizer];
  if (state.stage != Stage::kReady) {
    throw Error(ErrorCode::kInvalidArgument,
                state.stage == Stage::kUnscaled
                    ? "unscale_() was already called for this optimizer since the last update()"
                    : "unscale_() was called after step()",
                "call unscale_() once, after the last backward() and before step()");
  }
  const at::NoGradGuard no_grad;
  const at::Tensor& scale = used_scale_.defined() ? used_scale_ : scale_;
  const at::Tensor inverse = scale.to(at::kDouble).reciprocal().to(at::kFloat);
  at::Tensor found_inf = at::full({}, 0.0, scale_.options());
  for (auto& [type, gradients] : gradients_by_type(optimizer)) {
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inverse);
  }
  state = {Stage::kUnscaled, std::move(found_inf)};
}

bool GradScaler::ensure_unscaled(torch::optim::Optimizer& optimizer) {
  const auto found = states_.find(&optimizer);
  if (found != states_.end() && found->second.stage != Stage::kReady) return false;
  unscale_(optimizer);
  return options_.enabled;
}

void GradScaler::combine_overflow(const torch::optim::Optimizer& optimizer,
                                  const std::function<void(at::Tensor&)>& combine) {
  if (options_.enabled) combine(states_.at(&optimizer).found_inf);
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  return step(optimizer, [&optimizer] { optimizer.step(); });
}

bool GradScaler::step(torch::optim::Optimizer& optimizer, const std::function<void()>& update) {
  if (!options_.enabled) {
    update();
    return true;
  }
  ensure_unscaled(optimizer);
  OptimizerState& state = states_[&optimizer];
  if (state.stage == Stage::kStepped) {
    throw Error(ErrorCode::kInvalidArgument,
                "step() was already called for this optimizer since the last update()",
                "call update() once after every step()");
  }
  const bool is_finite = state.found_inf.item<float>() == 0.0F;
  if (is_finite) update();
  state.stage = Stage::kStepped;
  return is_finite;
}

// Optimizers that were unscaled but not stepped yet keep their state: with several optimizers each
// step is followed by an update, and the gradients of the later ones must not be divided twice.
void GradScaler::update() {
  if (!options_.enabled) return;
  const bool any_stepped = std::any_of(states_.begin(), states_.end(), [](const auto& entry) {
    return entry.second.stage == Stage::kStepped;
  });
  at::Tensor found_inf;
  for (auto entry = states_.begin(); entry != states_.end();) {
    const OptimizerState& state = entry->second;
    if (any_stepped && state.stage != Stage::kStepped) {
      ++entry;
      continue;
    }
    if (state.found_inf.defined()) {
      found_inf = found_inf.defined() ? found_inf + state.found_inf : state.found_inf;
    }
    entry = states_.erase(entry);
  }
  if (!found_inf.defined()) {
    throw Error(ErrorCode::kInvalidArgument,
                "update() was called before any gradient was unscaled",
                "call step() before update()");
  }
  if (options_.dynamic) adapt(found_inf);
}

// Without rules of DeepSpeed nothing is read back from the device.
void GradScaler::adapt(const at::Tensor& found_inf) {
  const bool has_rules = options_.hysteresis > 1 || options_.min_scale > 0;
  const bool has_overflow = has_rules && found_inf.item<float>() != 0.0F;
  if (has_overflow && hysteresis_left_ > 1) {
    --hysteresis_left_;
    growth_tracker_.zero_();
    return;
  }
  scale_ = scale_.clone();  // gradients that wait for their optimizer's step have the one before
  at::_amp_update_scale_(scale_,
                         growth_tracker_,
                         found_inf,
                         options_.growth_factor,
                         options_.backoff_factor,
                         options_.growth_interval);
  if (has_overflow) {
    scale_.clamp_min_(options_.min_scale);
  } else if (has_rules && (options_.consecutive_hysteresis || growth_tracker() == 0)) {
    hysteresis_left_ = options_.hysteresis;
  }
}

void GradScaler::forget(torch::optim::Optimizer& optimizer) {
  const auto found = states_.find(&optimizer);
  const bool is_unscaled = found != states_.end() && found->second.stage == Stage::kUnscaled;
  if (found != states_.end()) states_.erase(found);
  const bool has_changed = used_scale_.defined() && !used_scale_.is_same(scale_);
  if (!is_unscaled && !has_changed) return;
  const at::NoGradGuard no_grad;
  const at::Tensor factor = is_unscaled ? scale_ : scale_ / used_scale_;
  for (auto& [type, gradients] : gradients_by_type(optimizer)) {
    for (at::Tensor& gradient : gradients) gradient.mul_(factor);
  }
}

double GradScaler::get_scale() const {
  return options_.enabled ? scale_.item<double>() : 1.0;
}

std::int64_t GradScaler::growth_tracker() const {
  return options_.enabled ? growth_tracker_.item<int>() : 0;
}

StateDict GradScaler::state_dict() const {
  if (!options_.enabled) return {};
  StateDict state = {.tensors = {},
                     .values = {{"scale", get_scale()},
                                {"growth_factor", options_.growth_factor},
                                {"backoff_factor", options_.backoff_factor},
                                {"growth_interval", options_.growth_interval},
                                {"_growth_tracker", growth_tracker()}}};
  if (options_.hysteresis > 1) state.values["_hysteresis_left"] = hysteresis_left_;
  return state;
}

void GradScaler::load_state_dict(const StateDict& state) {
  if (!options_.enabled) return;
  const StateReader reader("the loss scaler", state);
  const double scale = reader.number("scale");
  GradScalerKwargs loaded = options_;
  loaded.growth_factor = reader.number("growth_factor");
  loaded.backoff_factor = reader.number("backoff_factor");
  loaded.growth_interval = reader.integer("growth_interval");
  const std::int64_t tracker = reader.integer("_growth_tracker");
  const std::int64_t left =
      reader.has("_hysteresis_left") ? reader.integer("_hysteresis_left") : options_.hysteresis;
  check_kwargs(loaded);
  options_ = loaded;
  scale_ = at::full_like(scale_, scale);
  growth_tracker_.fill_(tracker);
  hysteresis_left_ = left;
}

}  // namespace accel
