// StrategyRules: options that do not go together, found before workers start and not by each of them.
//
// Threads:  pure functions, but for check_deepspeed(), which reads the JSON file.
#pragma once

#include <string>
#include <vector>

#include "launcher/workers/strategy_settings.h"

namespace accel::launcher {

// May also set FSDP_SHARDING_STRATEGY, where a file of version 1 says it under the key of version 2.
void check_fsdp(const StrategyRequest& request,
                EnvMap& variables,
                std::vector<std::string>& notices,
                Faults& faults);

// Errors  kConfigUnreadable and kConfigSyntax for the JSON file.
void check_deepspeed(const EnvMap& variables, Faults& faults);

// Takes out the variables of axes of length 1, as the peer does.
void check_parallelism(const StrategyRequest& request, EnvMap& variables, Faults& faults);

// Whether the axes fit the number of processes of all nodes.
void check_sizes(const StrategySettings& settings, int num_processes, Faults& faults);

}  // namespace accel::launcher
