#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>

#include <torch/optim/optimizer.h>

#include <accel/error.h>
#include <accel/schedulers.h>

#include "libaccel/tensors/checked_number.h"
#include "libaccel/tensors/optimizer_traits.h"
#include "libaccel/tensors/state_reader.h"

namespace accel {

LRScheduler::LRScheduler(torch::optim::Optimizer& optimizer) : optimizer_(&optimizer) {
  base_lrs_ = current_rates();
  last_lrs_ = base_lrs_;
}

void LRScheduler::step() {
  ++step_count_;
  ++last_epoch_;
  set_rates(rates(current_rates()));
}

std::vector<double> LRScheduler::current_rates() const {
  std::vector<double> current;
  for (const auto& group : optimizer_->param_groups()) current.push_back(group.options().get_lr());
  return current;
}

void LRScheduler::set_rates(std::vector<double> rates) {
  auto& groups = optimizer_->param_groups();
  if (groups.size() != rates.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                "the scheduler was made for " + std::to_string(rates.size()) +
                    " parameter groups, the optimizer has " + std::to_string(groups.size()),
                "add parameter groups before the scheduler is made");
  }
  for (size_t i = 0; i < rates.size(); ++i) groups[i].options().set_lr(rates[i]);
  last_lrs_ = std::move(rates);
}

StateDict LRScheduler::state_dict() const {
  return {.tensors = {},
          .values = {{"base_lrs", base_lrs_},
                     {"last_epoch", last_epoch_},
                     {"_step_count", step_count_},
                     {"_last_lr", last_lrs_}}};
}

void LRScheduler::load_state_dict(const StateDict& state) {
  const StateReader reader("the scheduler", state);
  std::vector<double> base_lrs = reader.numbers("base_lrs");
  std::vector<double> last_lrs = reader.numbers("_last_lr");
  const std::int64_t last_epoch = reader.integer("last_epoch");
  const std::int64_t step_count = reader.integer("_step_count");
  if (base_lrs.size() != base_lrs_.size() || last_lrs.size() != base_lrs_.size()) {
    throw Error(ErrorCode::kCheckpointMismatch,
                "the saved scheduler has " + std::to_string(base_lrs.size()) +
                    " parameter groups, this one has " + std::to_string(base_lrs_.size()));
  }
  base_lrs_ = std::move(base_lrs);
  last_epoch_ = last_epoch;
  step_count_ = step_count;
  set_rates(std::move(last_lrs));
}

LambdaLR::LambdaLR(torch::optim::Optimizer& optimizer, LrFactor factor)
    : LambdaLR(optimizer,
               std::vector<LrFactor>(optimizer.param_groups().size(), std::move(factor))) {}

LambdaLR::LambdaLR(torch::optim::Optimizer& optimizer, std::vector<LrFactor> factors)
    : LRScheduler(optimizer), factors_(std::move(factors)) {
  if (factors_.size() != base_lrs().size()) {
    throw Error(ErrorCode::kInvalidArgument,
                std::to_string(factors_.size()) + " factors were given for " +
                    std::to_string(base_lrs().size()) + " parameter groups",
                "give one factor, or one for each group");
  }
  start();
}

std::vector<double> LambdaLR::rates(const std::vector<double>& /*current*/) {
  std::vector<double> rates = base_lrs();
  for (size_t i = 0; i < rates.size(); ++i) rates[i] *= factors_[i](last_epoch());
  return rates;
}

StepLR::StepLR(torch::optim::Optimizer& optimizer, std::int64_t step_size, double gamma)
    : LRScheduler(optimizer), step_size_(step_size), gamma_(gamma) {
  if (step_size_ <= 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "step_size is " + std::to_string(step_size_) + ", expected at least 1");
  }
  check_number(std::isfinite(gamma_), "gamma", gamma_, "a finite number");
  start();
}

std::vector<double> StepLR::rates(const std::vector<double>& current) {
  std::vector<double> rates = current;
  if (last_epoch() == 0 || last_epoch() % step_size_ != 0) return rates;
  for (double& rate : rates) rate *= gamma_;
  return rates;
}

CosineAnnealingLR::CosineAnnealingLR(torch::optim::Optimizer& optimizer,
                                     std::int64_t t_max,
                                     double eta_min)
    : LRScheduler(optimizer), t_max_(t_max), eta_min_(eta_min) {
  if (t_max_ < 1)
    throw Error(ErrorCode::kInvalidArgument,
                "t_max is " + std::to_string(t_max_) + ", expected at least 1");
  check_number(std::isfinite(eta_min_), "eta_min", eta_min_, "a finite number");
  start();
}

// PyTorch's own recursion, so that the rates are equal to the bit.
std::vector<double> CosineAnnealingLR::rates(const std::vector<double>& current) {
  std::vector<double> rates = current;
  if (last_epoch() == 0) return rates;
  const auto wave = [&](std::int64_t step) {
    return 1 + std::cos(std::numbers::pi * static_cast<double>(step) / static_cast<double>(t_max_));
  };
  const bool is_at_the_bottom = (last_epoch() - 1 - t_max_) % (2 * t_max_) == 0;
  for (std::size_t i = 0; i < rates.size(); ++i) {
    if (is_at_the_bottom) {
      rates[i] += (base_lrs()[i] - eta_min_) *
                  (1 - std::cos(std::numbers::pi / static_cast<double>(t_max_))) / 2;
    } else {
      rates[i] = wave(last_epoch()) / wave(last_epoch() - 1) * (rates[i] - eta_min_) + eta_min_;
    }
  }
  return rates;
}

WarmupLR::WarmupLR(torch::optim::Optimizer& optimizer, DeepSpeedWarmupOptions options)
    : LRScheduler(optimizer), options_(options) {
  for (const auto& [name, rate] : {std::pair("warmup_min_lr", options_.warmup_min_lr),
                                   {"warmup_max_lr", options_.warmup_max_lr}})
    check_number(std::isfinite(rate), name, rate, "a finite number");
  options_.warmup_num_steps = std::max<std::int64_t>(2, options_.warmup_num_steps);
  start();  // the rate before iteration 0: what derived classes add comes later
}

std::vector<double> WarmupLR::rates(const std::vector<double>& /*current*/) {
  const std::int64_t iteration = last_epoch() - 1;
  const auto steps = static_cast<double>(options_.warmup_num_steps);
  double share = 0;
  if (iteration >= options_.warmup_num_steps) {
    share = share_after_warmup(iteration);
  } else if (iteration >= 0) {
    share = options_.linear ? static_cast<double>(iteration) / steps
                            : std::log(static_cast<double>(iteration) + 1) / std::log(steps);
  }
  const double rate =
      options_.warmup_min_lr + (options_.warmup_max_lr - options_.warmup_min_lr) * share;
  return std::vector<double>(base_lrs().size(), rate);
}

WarmupDecayLR::WarmupDecayLR(torch::optim::Optimizer& optimizer, DeepSpeedWarmupOptions options)
    : WarmupLR(optimizer, options) {
  if (options.total_num_steps < 1)
    throw Error(
        ErrorCode::kInvalidArgument,
        "total_num_steps is " + std::to_string(options.total_num_steps) + ", expected at least 1",
        "say how many steps the training has");
}

double WarmupDecayLR::share_after_warmup(std::int64_t iteration) const {
  const std::int64_t left = options().total_num_steps - iteration;
  const std::int64_t decay = options().total_num_steps - options().warmup_num_steps;
  return std::max(
      0.0, static_cast<double>(left) / static_cast<double>(std::max<std::int64_t>(1, decay)));
}

namespace {

// One stretch of the cycle, ending at a (fractional) step.
struct Phase {
  double end_step;
  double start_lr;
  double end_lr;
  double start_momentum;
  double end_momentum;
};

std::vector<Phase> phases_of(const OneCycleOptions& o) {
  const double initial = o.max_lr / o.div_factor;
  const double minimum = initial / o.final_div_factor;
  const auto steps = static_cast<double>(o.total_steps);
  const Phase up = {o.pct_start * steps - 1.0, initial, o.max_lr, o.max_momentum, o.base_momentum};
  if (!o.three_phase) {
    return {up, {steps - 1.0, o.max_lr, minimum, o.base_momentum, o.max_momentum}};
  }
  return {up,
          {2.0 * o.pct_start * steps - 2.0, o.max_lr, initial, o.base_momentum, o.max_momentum},
          {steps - 1.0, initial, minimum, o.max_momentum, o.max_momentum}};
}

double anneal(bool linear, double start, double end, double part) {
  if (linear) return (end - start) * part + start;
  return end + (start - end) / 2.0 * (std::cos(std::numbers::pi * part) + 1.0);
}

// Sets momentum, or the first of betas. False when the options have neither.
bool set_momentum(torch::optim::OptimizerOptions& options, double value) {
  const OptimizerTraits* const traits = traits_of(options);
  if (traits == nullptr) return false;
  for (const OptimizerField& field : traits->option_fields(options)) {
    const std::string_view name = field.name;
    if (name == "momentum") {
      *std::get<double*>(field.value) = value;
      return true;
    }
    if (name == "betas") {
      std::get<0>(*std::get<std::tuple<double, double>*>(field.value)) = value;
      return true;
    }
  }
  return false;
}

void check_one_cycle(const OneCycleOptions& options) {
  constexpr const char* kAboveZero = "a finite number above 0";
  constexpr const char* kFinite = "a finite number";
  if (options.total_steps <= 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "total_steps is " + std::to_string(options.total_steps) + ", expected at least 1");
  }
  const auto is_above_zero = [](double value) { return value > 0 && std::isfinite(value); };
  check_number(is_above_zero(options.max_lr), "max_lr", options.max_lr, kAboveZero);
  check_number(options.pct_start >= 0.0 && options.pct_start <= 1.0,
               "pct_start",
               options.pct_start,
               "a number between 0 and 1");
  check_number(is_above_zero(options.div_factor), "div_factor", options.div_factor, kAboveZero);
  check_number(is_above_zero(options.final_div_factor),
               "final_div_factor",
               options.final_div_factor,
               kAboveZero);
  check_number(
      std::isfinite(options.base_momentum), "base_momentum", options.base_momentum, kFinite);
  check_number(std::isfinite(options.max_momentum), "max_momentum", options.max_momentum, kFinite);
}

}  // namespace

OneCycleLR::OneCycleLR(torch::optim::Optimizer& optimizer, OneCycleOptions options)
    : LRScheduler(optimizer), options_(options) {
  check_one_cycle(options_);
  set_base_lrs(std::vector<double>(base_lrs().size(), options_.max_lr / options_.div_factor));
  start();
}

std::vector<double> OneCycleLR::rates(const std::vector<double>& /*current*/) {
  if (last_epoch() > options_.total_steps) {
    throw Error(ErrorCode::kInvalidArgument,
                "OneCycleLR was stepped " + std::to_string(last_epoch()) +
                    " times; its total_steps is " + std::to_string(options_.total_steps),
                "raise OneCycleOptions.total_steps, or stop stepping at the end");
  }
  const std::vector<Phase> phases = phases_of(options_);
  const auto step = static_cast<double>(last_epoch());
  size_t index = 0;
  while (index + 1 < phases.size() && step > phases[index].end_step) ++index;
  const Phase& phase = phases[index];
  const double start_step = index == 0 ? 0.0 : phases[index - 1].end_step;
  const double part = (step - start_step) / (phase.end_step - start_step);

  if (options_.cycle_momentum) {
    const double momentum = anneal(options_.linear, phase.start_momentum, phase.end_momentum, part);
    for (auto& group : optimizer()->param_groups()) {
      if (set_momentum(group.options(), momentum)) continue;
      throw Error(ErrorCode::kInvalidArgument,
                  "the optimizer has neither momentum nor betas to cycle",
                  "set OneCycleOptions.cycle_momentum = false");
    }
  }
  return std::vector<double>(base_lrs().size(),
                             anneal(options_.linear, phase.start_lr, phase.end_lr, part));
}

ReduceLROnPlateau::ReduceLROnPlateau(torch::optim::Optimizer& optimizer, PlateauOptions options)
    : LRScheduler(optimizer),
      options_(options),
      best_(options.maximize ? -std::numeric_limits<double>::infinity()
                             : std::numeric_limits<double>::infinity()) {
  check_number(options_.factor >= 0.0 && options_.factor < 1.0,
               "factor",
               options_.factor,
               "a number from 0 to below 1");
  check_number(
      std::isfinite(options_.threshold), "threshold", options_.threshold, "a finite number");
  check_number(std::isfinite(options_.min_lr), "min_lr", options_.min_lr, "a finite number");
  check_number(std::isfinite(options_.eps), "eps", options_.eps, "a finite number");
}

void ReduceLROnPlateau::step() {
  throw Error(ErrorCode::kInvalidArgument,
              "ReduceLROnPlateau was stepped without a metric",
              "call step(metric), for example with the validation loss");
}

void ReduceLROnPlateau::step(double metric) {
  metric_ = metric;
  LRScheduler::step();
}

bool ReduceLROnPlateau::is_better(double metric) const {
  const double threshold = options_.threshold;
  if (options_.threshold_is_relative) {
    return options_.maximize ? metric > best_ * (threshold + 1.0)
                             : metric < best_ * (1.0 - threshold);
  }
  return options_.maximize ? metric > best_ + threshold : metric < best_ - threshold;
}

std::vector<double> ReduceLROnPlateau::rates(const std::vector<double>& current) {
  if (is_better(metric_)) {
    best_ = metric_;
    num_bad_epochs_ = 0;
  } else {
    ++num_bad_epochs_;
  }
  if (cooldown_left_ > 0) {
    --cooldown_left_;
    num_bad_epochs_ = 0;
  }
  std::vector<double> rates = current;
  if (num_bad_epochs_ <= options_.patience) return rates;
  for (double& rate : rates) {
    const double lowered = std::max(rate * options_.factor, options_.min_lr);
    if (rate - lowered > options_.eps) rate = lowered;
  }
  cooldown_left_ = options_.cooldown;
  num_bad_epochs_ = 0;
  return rates;
}

StateDict ReduceLROnPlateau::state_dict() const {
  StateDict state = LRScheduler::state_dict();
  // JSON has no infinity: before the first step there is no best value to save.
  if (std::isfinite(best_)) state.values["best"] = best_;
  state.values["cooldown_counter"] = cooldown_left_;
  state.values["num_bad_epochs"] = num_bad_epochs_;
  return state;
}

void ReduceLROnPlateau::load_state_dict(const StateDict& state) {
  const StateReader reader("the scheduler", state);
  const std::int64_t cooldown_left = reader.integer("cooldown_counter");
  const std::int64_t num_bad_epochs = reader.integer("num_bad_epochs");
  const bool has_best = state.values.contains("best");
  const double best = has_best ? reader.number("best") : best_;
  LRScheduler::load_state_dict(state);
  best_ = best;
  cooldown_left_ = cooldown_left;
  num_bad_epochs_ = num_bad_epochs;
}

}  // namespace accel
