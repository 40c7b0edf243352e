#include "libaccel/engine/settings/parallelism_settings.h"

#include <string>
#include <tuple>
#include <utility>

#include <accel/error.h>

#include "libaccel/engine/settings/variable_values.h"
#include "runtime/unserved_variables.h"

namespace accel::sharding {
namespace {

void refuse_axes_of_model(const ParallelismConfig& config) {
  if (config.non_data_parallel_size() == 1) return;
  const ParallelismConfig asked{
      .tp_size = config.tp_size, .cp_size = config.cp_size, .sp_size = config.sp_size};
  throw Error(ErrorCode::kUnsupported,
              asked.to_string() +
                  " of the ParallelismConfig is not part of this build: processes divide batches, "
                  "gradients, parameters and states, but no operator and no sequence",
              "leave it out, and give all processes to dp_shard_size");
}

[[noreturn]] void refuse_contradiction(const std::string& message, const std::string& remedy) {
  throw Error(ErrorCode::kInvalidArgument, message, remedy);
}

// Accelerate takes a ParallelismConfig with version 2 alone, so it is the default beside one.
FullyShardedDataParallelPlugin of_version_2(FullyShardedDataParallelPlugin plugin,
                                            const EnvLookup& env) {
  if (!plugin.fsdp_version && !text_of(env, "FSDP_VERSION")) plugin.fsdp_version = 2;
  return plugin;
}

void lay_out(FsdpSettings& settings, const ParallelismConfig& config) {
  const std::string sizes = "the ParallelismConfig has " + config.to_string();
  const std::string strategy = "sharding_strategy is " + std::string(to_string(settings.strategy));
  if (settings.version == 1) {
    refuse_contradiction(
        "fsdp_version is 1, and " + sizes + ": it is compatible with FSDP of version 2 alone",
        "set fsdp_version to 2, or leave the ParallelismConfig out");
  }
  const bool is_hybrid = settings.strategy == ShardingStrategy::kHybridShard ||
                         settings.strategy == ShardingStrategy::kHybridShardZero2;
  const bool is_copied = settings.strategy == ShardingStrategy::kNoShard;
  if (is_copied != !config.dp_shard_enabled()) {
    refuse_contradiction(
        is_copied ? strategy + ", and " + sizes + ": one copies models, the other divides them"
                  : "FSDP is enabled, and " + sizes +
                        ": it has no axis for FSDP to divide along, for dp_shard_size is 1",
        is_copied ? "set dp_replicate_size alone, or another strategy"
                  : "set dp_shard_size above 1, or launch without FSDP");
  }
  if (is_hybrid && !config.dp_replicate_enabled()) {
    refuse_contradiction(strategy + ", and " + sizes + ": that is one copy",
                         "set dp_replicate_size above 1, or use FULL_SHARD or SHARD_GRAD_OP");
  }
  settings.layout =
      MeshShape{.replicate = *config.dp_replicate_size, .shard = *config.dp_shard_size};
  if (is_copied || is_hybrid || !config.dp_replicate_enabled()) return;
  settings.strategy = settings.strategy == ShardingStrategy::kFullShard
                          ? ShardingStrategy::kHybridShard
                          : ShardingStrategy::kHybridShardZero2;
}

}  // namespace

std::optional<ParallelismConfig> asked_parallelism(const std::optional<ParallelismConfig>& given,
                                                   const EnvLookup& env) {
  const bool is_asked = given || flag_of(env, "ACCELERATE_USE_PARALLELISM_CONFIG").value_or(false);
  if (!is_asked) return std::nullopt;
  if (!given) std::ignore = check_unserved_variables(env);  // by their names, flags and keys
  const ParallelismConfig config = given.value_or(ParallelismConfig{}).resolved(env);
  refuse_axes_of_model(config);
  return config;
}

std::optional<FsdpSettings> resolve_fsdp(
    const std::optional<FullyShardedDataParallelPlugin>& plugin,
    const std::optional<ParallelismConfig>& config,
    const EnvLookup& env) {
  const bool is_laid_out = config && config->total_size() > 1;
  const bool is_asked =
      plugin || environment_wants_fsdp(env) || (config && config->dp_shard_enabled());
  if (!is_asked) return std::nullopt;
  FullyShardedDataParallelPlugin asked = plugin.value_or(FullyShardedDataParallelPlugin{});
  if (!is_laid_out) return resolve(asked, env);
  FsdpSettings settings = resolve(of_version_2(std::move(asked), env), env);
  lay_out(settings, *config);
  return settings;
}

ParallelismConfig fitted(ParallelismConfig config, int num_processes, Divides divides) {
  if (config.total_size() == 1) {
    if (divides == Divides::kNothing) config.dp_replicate_size = num_processes;
    return config;
  }
  if (config.total_size() != num_processes) {
    throw Error(ErrorCode::kInvalidArgument,
                "the sizes of the ParallelismConfig make " + std::to_string(config.total_size()) +
                    " processes (" + config.to_string() + "), and the job has " +
                    std::to_string(num_processes),
                "give sizes whose product is the number of processes");
  }
  if (divides == Divides::kByZero && config.dp_replicate_enabled() && config.dp_shard_enabled()) {
    throw Error(ErrorCode::kUnsupported,
                "DeepSpeed's stages divide over all processes, and the ParallelismConfig has " +
                    config.to_string(),
                "use fsdp_plugin in place of deepspeed_plugin, or dp_shard_size alone");
  }
  return config;
}

}  // namespace accel::sharding
