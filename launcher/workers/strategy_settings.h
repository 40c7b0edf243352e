// StrategySettings: which training strategies hold for a launch, and what the workers are told of them.
//
// A flag beats the configuration file, the file beats the default, option by option.
//
// Threads:  pure functions, but for DeepSpeed's JSON file, which is looked at.
#pragma once

#include <string>
#include <vector>

#include <accel/env_contract.h>

#include "launcher/config/config_file.h"
#include "launcher/flags/flags.h"
#include "launcher/text/faults.h"

namespace accel::launcher {

struct StrategySettings {
  bool fsdp = false;
  bool deepspeed = false;
  bool megatron = false;
  bool parallelism = false;  // beside one of the others, or --multi_gpu
  EnvMap variables;

  // Workers are started as torchrun starts them, also a single one.
  [[nodiscard]] bool is_any() const { return fsdp || deepspeed || megatron; }
};

// What stands beside each other while strategies are chosen. `file` is nullptr without a configuration.
struct StrategyRequest {
  const CommandLine& line;
  const ConfigFile* file = nullptr;
  bool multi_gpu = false;  // by flag or file

  [[nodiscard]] bool is_said(std::string_view option) const;
};

[[nodiscard]] StrategySettings choose_strategies(const StrategyRequest& request,
                                                 std::vector<std::string>& notices,
                                                 Faults& faults);

// The options of fp8, for workers whose mixed precision it is.
[[nodiscard]] EnvMap fp8_variables(const StrategyRequest& request, Faults& faults);

}  // namespace accel::launcher
