// DeepSpeedSections: the optimizer and the scheduler of a configuration file of DeepSpeed, checked, and what they are made of.
//
// A number that is "auto" is what the program's stand-in says (accel/deepspeed.h); one that is left out is DeepSpeed's default.
//
// Threads:  pure functions; those that make objects, the thread that trains.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include <nlohmann/json_fwd.hpp>

#include <accel/deepspeed.h>
#include <accel/schedulers.h>

namespace accel::sharding {

// A number of a section, or "auto".
template <typename Number>
struct SectionValue {
  std::optional<Number> number;  // std::nullopt: left out, unless
  bool is_automatic = false;
  // The number, else what the stand-in says, else the default.
  [[nodiscard]] Number value_or(Number automatic, Number fallback) const {
    return number ? *number : is_automatic ? automatic : fallback;
  }
};

struct OptimizerSection {
  std::string type;  // lower case: adam, adamw, sgd, lion, muon, adagrad
  SectionValue<double> lr;
  SectionValue<double> weight_decay;
  std::optional<std::tuple<double, double>> betas;
  std::optional<double> eps;
  std::optional<double> momentum;
  bool adam_w_mode = true;  // of adam: decay apart from the gradient
};

struct SchedulerSection {
  std::string type;  // WarmupLR or WarmupDecayLR
  SectionValue<double> warmup_min_lr;
  SectionValue<double> warmup_max_lr;
  SectionValue<std::int64_t> warmup_num_steps;
  SectionValue<std::int64_t> total_num_steps;
  bool is_linear = false;  // the warm-up; else logarithmic
};

// path: for messages. Throw kConfigInvalidValue naming the key, also for an "auto" that nothing fills; kUnsupported naming a type or
// a parameter that is not there.
[[nodiscard]] OptimizerSection parse_optimizer_section(const nlohmann::json& section,
                                                       const std::string& path);
[[nodiscard]] SchedulerSection parse_scheduler_section(const nlohmann::json& section,
                                                       const std::string& path);

[[nodiscard]] std::shared_ptr<torch::optim::Optimizer> make_optimizer(
    const OptimizerSection& section, const DummyOptim& dummy);
// num_processes: that read total_num_steps of the stand-in between them. Throws kConfigInvalidValue for a total_num_steps that
// neither says.
[[nodiscard]] std::shared_ptr<Scheduler> make_scheduler(const SchedulerSection& section,
                                                        const DummyScheduler& dummy,
                                                        torch::optim::Optimizer& optimizer,
                                                        int num_processes);

}  // namespace accel::sharding
