// DeepSpeedConfig: the configuration that DeepSpeed would get, as text: a file's, or what a plugin comes to without one.
//
// Threads:  pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>

#include <accel/types.h>

#include "libaccel/engine/settings/fsdp_settings.h"

namespace accel::sharding {

// By keys with points, "optimizer.params.lr".
using ConfigValues = std::map<std::string, std::variant<bool, std::int64_t, double>>;

// JSON of what HF Accelerate makes of a plugin without a file: what is not said is "auto". gradient_accumulation_steps: of the
// environment.
[[nodiscard]] std::string config_of(const FsdpSettings& settings,
                                    std::optional<int> gradient_accumulation_steps);

// The JSON with the values where it says "auto". Requires: config is a map.
[[nodiscard]] std::string filled_config(const std::string& config, const ConfigValues& values);

// As Python prints the dictionary that HF Accelerate has: with the switches of 16 bits, and without reports. Requires: as above.
[[nodiscard]] std::string printed_config(const std::string& config, PrecisionType precision);

// The batch of all processes from that of one: what the file says, else micro_batch_size. Throws kInvalidArgument where the file's
// train_batch_size is another one; std::nullopt of micro_batch_size: no loader says it.
void check_batch_sizes(const std::string& config,
                       std::optional<std::int64_t> micro_batch_size,
                       std::int64_t gradient_accumulation_steps,
                       std::int64_t num_processes);

}  // namespace accel::sharding
