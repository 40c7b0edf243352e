// DeepSpeedOptions: the options of an Accelerator after its configuration file of DeepSpeed was read.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <accel/accelerator_options.h>
#include <accel/env_contract.h>

#include "libaccel/engine/precision/precision_recipe.h"
#include "libaccel/engine/settings/deepspeed_sections.h"

namespace accel {

// A fsdp_plugin goes before the variable. Throws kEnvInvalid.
[[nodiscard]] bool wants_deepspeed(const AcceleratorOptions& options, const EnvLookup& env);

struct DeepSpeedOptions {
  AcceleratorOptions options;
  DeepSpeedPrecision precision;  // of the file
  std::optional<sharding::OptimizerSection> optimizer;
  std::optional<sharding::SchedulerSection> scheduler;
  std::string config;  // the file's, as JSON; empty: there is none
  std::vector<std::string> notices;
};

// Of several plugins the first, unless one is set already. With ACCELERATE_USE_DEEPSPEED (or a deepspeed_plugin) and hf_ds_config or ACCELERATE_DEEPSPEED_CONFIG_FILE: what the file
// says goes before the plugin, the options and their variables, as in the peer. Without: the options. Throws what
// parse_deepspeed_file() throws; kConfigUnreadable.
[[nodiscard]] DeepSpeedOptions read_deepspeed_options(AcceleratorOptions options,
                                                      const EnvLookup& env);

}  // namespace accel
