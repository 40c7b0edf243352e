#include "libaccel/c_interface/options.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <accel/env_contract.h>
#include <accel/error.h>
#include <accel/rendezvous.h>

#include "libaccel/c_interface/guarded_call.h"
#include "runtime/printable.h"

namespace accel::c_interface {
namespace {

using std::chrono::milliseconds;

std::chrono::milliseconds time_of(double seconds, const char* field) {
  if (!(seconds > 0)) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string("options.") + field + " is " + std::to_string(seconds) +
                    " s, expected a time above 0",
                "call accel_options_init() before you set fields");
  }
  const double longest = std::chrono::duration<double>(std::chrono::days(24)).count();
  return milliseconds(static_cast<std::int64_t>(std::min(seconds, longest) * 1000.0));
}

// "ddp" is what the program gets when neither it nor the launcher says anything.
void refuse_divided_environment() {
  const EnvLookup env = process_env();
  for (const char* name : {"ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"}) {
    const auto value = env(name);
    if (!value || value->empty() || !or_throw(parse_env_bool(name, *value))) continue;
    throw Error(ErrorCode::kInvalidArgument,
                std::string("options.strategy is ddp, but ") + name + " asks to divide the model",
                "leave options.strategy NULL, or unset " + std::string(name));
  }
}

void set_strategy(AcceleratorOptions& options, std::string_view strategy) {
  if (strategy == "ddp") return refuse_divided_environment();
  if (strategy == "zero1") {
    options.deepspeed_plugin.emplace().zero_stage = 1;
  } else if (strategy == "zero2") {
    options.fsdp_plugin.emplace().sharding_strategy = ShardingStrategy::kShardGradOp;
  } else if (strategy == "full_shard") {
    options.fsdp_plugin.emplace().sharding_strategy = ShardingStrategy::kFullShard;
  } else {
    throw Error(ErrorCode::kInvalidArgument,
                "options.strategy is '" + printable(strategy) + "', which is none",
                "choose ddp, zero1, zero2 or full_shard");
  }
}

WorkerIdentity identity_of(const accel_communicator& communicator) {
  return identity_at(communicator.address == nullptr ? "" : communicator.address,
                     {.rank = communicator.rank,
                      .world_size = communicator.world_size,
                      .local_rank = communicator.local_rank,
                      .local_world_size = communicator.local_world_size});
}

// The text of a field of fixed size, which need not end with 0.
template <std::size_t N>
std::string_view text_of(const char (&field)[N]) {
  return {field, strnlen(field, N)};
}

template <std::size_t N>
void write_name(char (&field)[N], std::string_view name) {
  std::ranges::copy(name.substr(0, N - 1), field);
}

// A field that this optimizer or schedule does not have must be as its init function left it.
void refuse_unused(std::string_view owner,
                   std::initializer_list<std::pair<const char*, double>> unused) {
  for (const auto& [field, value] : unused) {
    if (value == 0) continue;
    throw Error(ErrorCode::kInvalidArgument,
                std::string(field) + " is " + std::to_string(value) + ", and " +
                    std::string(owner) + " has none",
                "leave it 0");
  }
}

void require_range(const char* field, double value, bool is_right, const char* expected) {
  if (is_right) return;
  throw Error(ErrorCode::kInvalidArgument,
              std::string(field) + " is " + std::to_string(value) + ", expected " + expected);
}

Error no_optimizer(std::string_view name) {
  return Error(ErrorCode::kInvalidArgument,
               "there is no optimizer '" + printable(name) + "'",
               "choose adamw, adam or sgd, and call accel_optimizer_options_init()");
}

template <typename Options>
Options adam_options(const accel_optimizer_options& options) {
  refuse_unused(text_of(options.name),
                {{"momentum", options.momentum},
                 {"dampening", options.dampening},
                 {"nesterov", options.nesterov}});
  const auto is_beta = [](double beta) { return beta >= 0 && beta < 1; };
  require_range("beta1", options.beta1, is_beta(options.beta1), "0 or more, below 1");
  require_range("beta2", options.beta2, is_beta(options.beta2), "0 or more, below 1");
  require_range("eps", options.eps, options.eps >= 0, "0 or more");
  return Options(options.lr)
      .betas({options.beta1, options.beta2})
      .eps(options.eps)
      .weight_decay(options.weight_decay)
      .amsgrad(options.amsgrad != 0);
}

torch::optim::SGDOptions sgd_options(const accel_optimizer_options& options) {
  refuse_unused("sgd",
                {{"beta1", options.beta1},
                 {"beta2", options.beta2},
                 {"eps", options.eps},
                 {"amsgrad", options.amsgrad}});
  require_range("momentum", options.momentum, options.momentum >= 0, "0 or more");
  const bool may_be_nesterov = options.momentum > 0 && options.dampening == 0;
  require_range("nesterov",
                options.nesterov,
                options.nesterov == 0 || may_be_nesterov,
                "0 without momentum and with dampening");
  return torch::optim::SGDOptions(options.lr)
      .momentum(options.momentum)
      .dampening(options.dampening)
      .weight_decay(options.weight_decay)
      .nesterov(options.nesterov != 0);
}

}  // namespace

AcceleratorOptions accelerator_options(const accel_options& options) {
  AcceleratorOptions result;
  if (options.mixed_precision != nullptr) result.mixed_precision = options.mixed_precision;
  if (options.strategy != nullptr) set_strategy(result, options.strategy);
  if (options.gradient_accumulation_steps < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "options.gradient_accumulation_steps is " +
                    std::to_string(options.gradient_accumulation_steps) + ", expected at least 1",
                "call accel_options_init() before you set fields");
  }
  result.gradient_accumulation_steps = options.gradient_accumulation_steps;
  result.cpu = options.cpu != 0;
  result.ddp.find_unused_parameters = options.find_unused_parameters != 0;
  result.init_process_group.timeout = time_of(options.timeout, "timeout");
  result.init_process_group.store_timeout = time_of(options.store_timeout, "store_timeout");
  if (options.communicator != nullptr)
    result.init_process_group.identity = identity_of(*options.communicator);
  return result;
}

accel_optimizer_options default_optimizer(const char* given_name) {
  const std::string_view name = &given(given_name, "name");
  accel_optimizer_options options{};
  write_name(options.name, name);
  options.lr = 1e-3;
  if (name == "sgd") return options;
  if (name != "adamw" && name != "adam") throw no_optimizer(name);
  options.beta1 = 0.9;
  options.beta2 = 0.999;
  options.eps = 1e-8;
  options.weight_decay = name == "adamw" ? 1e-2 : 0.0;
  return options;
}

std::shared_ptr<torch::optim::Optimizer> make_optimizer(const accel_optimizer_options& options,
                                                        const torch::nn::Module& module) {
  require_range("lr", options.lr, options.lr >= 0, "0 or more");
  require_range("weight_decay", options.weight_decay, options.weight_decay >= 0, "0 or more");
  std::vector<at::Tensor> trained;
  for (const at::Tensor& parameter : module.parameters()) {
    if (parameter.requires_grad()) trained.push_back(parameter);
  }
  if (trained.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "the model has no parameters to train",
                "prepare it without an optimizer");
  }
  const std::string_view name = text_of(options.name);
  if (name == "adamw") {
    return std::make_shared<torch::optim::AdamW>(trained,
                                                 adam_options<torch::optim::AdamWOptions>(options));
  }
  if (name == "adam") {
    return std::make_shared<torch::optim::Adam>(trained,
                                                adam_options<torch::optim::AdamOptions>(options));
  }
  if (name == "sgd") return std::make_shared<torch::optim::SGD>(trained, sgd_options(options));
  throw no_optimizer(name);
}

accel_schedule default_schedule(const char* given_name) {
  const std::string_view name = &given(given_name, "name");
  accel_schedule schedule{};
  write_name(schedule.name, name);
  if (name == "step") {
    schedule.gamma = 0.1;
  } else if (name != "constant" && name != "linear" && name != "cosine") {
    throw Error(ErrorCode::kInvalidArgument,
                "there is no schedule '" + printable(name) + "'",
                "choose constant, linear, cosine or step");
  }
  return schedule;
}

LrFactor lr_factor(const accel_schedule& schedule) {
  const std::string_view name = text_of(schedule.name);
  (void)default_schedule(std::string(name).c_str());  // there is one of this name
  const std::int64_t warmup = schedule.num_warmup_steps;
  const std::int64_t total = schedule.num_training_steps;
  require_range("num_warmup_steps", static_cast<double>(warmup), warmup >= 0, "0 or more");
  const bool has_end = name == "linear" || name == "cosine";
  if (has_end) {
    require_range("num_training_steps",
                  static_cast<double>(total),
                  total > 0 && total >= warmup,
                  "above 0, and at least num_warmup_steps");
  } else {
    refuse_unused(name, {{"num_training_steps", static_cast<double>(total)}});
  }
  if (name != "step") {
    refuse_unused(
        name, {{"step_size", static_cast<double>(schedule.step_size)}, {"gamma", schedule.gamma}});
  }
  if (name == "linear")
    return linear_with_warmup({.num_warmup_steps = warmup, .num_training_steps = total});
  if (name == "cosine")
    return cosine_with_warmup({.num_warmup_steps = warmup, .num_training_steps = total});
  if (name == "constant") return constant_with_warmup(warmup);
  const std::int64_t size = schedule.step_size;
  require_range("step_size", static_cast<double>(size), size > 0, "above 0");
  return [rise = constant_with_warmup(warmup), warmup, size, gamma = schedule.gamma](
             std::int64_t step) {
    const std::int64_t num_falls = std::max<std::int64_t>(step - warmup, 0) / size;
    return rise(step) * std::pow(gamma, static_cast<double>(num_falls));
  };
}

}  // namespace accel::c_interface
