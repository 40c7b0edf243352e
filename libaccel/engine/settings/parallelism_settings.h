// ParallelismSettings: what a ParallelismConfig makes of a training: its settings of FSDP, and whether it fits the job.
//
// Threads:  pure functions.
#pragma once

#include <optional>

#include <accel/env_contract.h>
#include <accel/fsdp.h>
#include <accel/parallelism_config.h>

#include "libaccel/engine/settings/fsdp_settings.h"

namespace accel::sharding {

// What the program asks for, else with ACCELERATE_USE_PARALLELISM_CONFIG the variables; nullopt: neither. Throws as
// ParallelismConfig::resolved(), and kUnsupported for an axis along which operators or sequences are divided.
[[nodiscard]] std::optional<ParallelismConfig> asked_parallelism(
    const std::optional<ParallelismConfig>& given, const EnvLookup& env);

// The settings of FSDP where nothing asks for DeepSpeed: of the plugin, or of the variables, laid out by the configuration, which
// asks for FSDP itself when it divides models. nullopt: copies. Throws as resolve(), and kInvalidArgument where plugin and
// configuration contradict each other.
[[nodiscard]] std::optional<FsdpSettings> resolve_fsdp(
    const std::optional<FullyShardedDataParallelPlugin>& plugin,
    const std::optional<ParallelismConfig>& config,
    const EnvLookup& env);

enum class Divides { kNothing, kByFsdp, kByZero };

// The configuration of a job of num_processes. Where all sizes are 1 they say nothing: of copies dp_replicate_size becomes
// num_processes, and what divides models decides for itself. Throws kInvalidArgument where the product is another number;
// kUnsupported for copies of models that DeepSpeed divides.
[[nodiscard]] ParallelismConfig fitted(ParallelismConfig config,
                                       int num_processes,
                                       Divides divides);

}  // namespace accel::sharding
