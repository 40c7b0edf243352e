// The factors of HF transformers' schedules. The order of operations is the peer's, so that the
// rates are equal to the bit.

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include <accel/error.h>
#include <accel/schedulers.h>

#include "libaccel/tensors/checked_number.h"

namespace accel {
namespace {

double as_double(std::int64_t count) {
  return static_cast<double>(count);
}
void check_finite(const char* name, double value) {
  check_number(std::isfinite(value), name, value, "a finite number");
}
double at_least_one(std::int64_t count) {
  return as_double(std::max<std::int64_t>(1, count));
}

double warmup(std::int64_t step, std::int64_t num_warmup_steps) {
  return as_double(step) / at_least_one(num_warmup_steps);
}

// How far a step is between the end of the warm-up and the end of training.
double progress(std::int64_t step, std::int64_t num_warmup_steps, std::int64_t num_training_steps) {
  return as_double(step - num_warmup_steps) / at_least_one(num_training_steps - num_warmup_steps);
}

// 1 at progress 0, 0 at progress 1.
double falling(DecayShape shape, double progress, double num_cycles) {
  switch (shape) {
    case DecayShape::kLinear:
      return 1.0 - progress;
    case DecayShape::kCosine:
      return 0.5 * (1.0 + std::cos(std::numbers::pi * num_cycles * 2.0 * progress));
    case DecayShape::kOneMinusSqrt:
      return 1.0 - std::sqrt(progress);
  }
  return 0.0;
}

// 0 at progress 0, 1 at progress 1.
double rising(DecayShape shape, double progress) {
  switch (shape) {
    case DecayShape::kLinear:
      return progress;
    case DecayShape::kCosine:
      return 0.5 * (1.0 - std::cos(std::numbers::pi * progress));
    case DecayShape::kOneMinusSqrt:
      return 1.0 - std::sqrt(1.0 - progress);
  }
  return 0.0;
}

}  // namespace

LrFactor constant_with_warmup(std::int64_t num_warmup_steps) {
  return [num_warmup_steps](std::int64_t step) {
    return step < num_warmup_steps ? warmup(step, num_warmup_steps) : 1.0;
  };
}

LrFactor linear_with_warmup(WarmupOptions options) {
  return [options](std::int64_t step) {
    if (step < options.num_warmup_steps) return warmup(step, options.num_warmup_steps);
    return std::max(0.0,
                    as_double(options.num_training_steps - step) /
                        at_least_one(options.num_training_steps - options.num_warmup_steps));
  };
}

LrFactor cosine_with_warmup(CosineOptions options) {
  check_finite("num_cycles", options.num_cycles);
  return [options](std::int64_t step) {
    if (step < options.num_warmup_steps) return warmup(step, options.num_warmup_steps);
    const double done = progress(step, options.num_warmup_steps, options.num_training_steps);
    return std::max(0.0,
                    0.5 * (1.0 + std::cos(std::numbers::pi * options.num_cycles * 2.0 * done)));
  };
}

LrFactor cosine_with_hard_restarts(CosineRestartOptions options) {
  return [options](std::int64_t step) {
    if (step < options.num_warmup_steps) return warmup(step, options.num_warmup_steps);
    const double done = progress(step, options.num_warmup_steps, options.num_training_steps);
    if (done >= 1.0) return 0.0;
    const double within_cycle = std::fmod(as_double(options.num_cycles) * done, 1.0);
    return std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * within_cycle)));
  };
}

LrFactor polynomial_with_warmup(PolynomialOptions options, double base_lr) {
  check_finite("lr_end", options.lr_end);
  check_finite("power", options.power);
  check_finite("the base lr", base_lr);
  if (base_lr <= options.lr_end) {
    throw Error(ErrorCode::kInvalidArgument,
                "lr_end " + std::to_string(options.lr_end) + " is not below the base lr " +
                    std::to_string(base_lr));
  }
  return [options, base_lr](std::int64_t step) {
    if (step < options.num_warmup_steps) return warmup(step, options.num_warmup_steps);
    if (step > options.num_training_steps) return options.lr_end / base_lr;
    const double range = base_lr - options.lr_end;
    const double decay_steps = as_double(options.num_training_steps - options.num_warmup_steps);
    const double remaining = 1.0 - as_double(step - options.num_warmup_steps) / decay_steps;
    return (range * std::pow(remaining, options.power) + options.lr_end) / base_lr;
  };
}

LrFactor warmup_stable_decay(WarmupStableDecayOptions options) {
  check_finite("min_lr_ratio", options.min_lr_ratio);
  check_finite("num_cycles", options.num_cycles);
  return [options](std::int64_t step) {
    const double floor = options.min_lr_ratio;
    if (step < options.num_warmup_steps) {
      const double factor = rising(options.warmup, warmup(step, options.num_warmup_steps));
      return std::max(0.0, factor * (1.0 - floor) + floor);
    }
    const std::int64_t decay_start = options.num_warmup_steps + options.num_stable_steps;
    if (step < decay_start) return 1.0;
    if (step >= decay_start + options.num_decay_steps) return floor;
    const double done = as_double(step - decay_start) / at_least_one(options.num_decay_steps);
    const double factor = falling(options.decay, done, options.num_cycles);
    return std::max(0.0, factor * (1.0 - floor) + floor);
  };
}

}  // namespace accel
