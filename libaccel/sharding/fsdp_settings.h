// FsdpSettings: what FullyShardedDataParallelPlugin and the FSDP_* environment come to, checked.
//
// Threads:  pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <accel/env_contract.h>
#include <accel/fsdp.h>

namespace accel::sharding {

struct FsdpSettings {
  ShardingStrategy strategy = ShardingStrategy::kFullShard;
  AutoWrapPolicy wrap = AutoWrapPolicy::kNoWrap;
  std::vector<std::string> transformer_classes;  // for kTransformerBasedWrap; not empty then
  std::int64_t min_num_params = 0;               // for kSizeBasedWrap; above 0 then
  std::string ignored_modules;                   // a regular expression; empty: none
  bool sync_module_states = true;
  MixedPrecisionPolicy precision;  // reduce_dtype is set where param_dtype is
  [[nodiscard]] bool has_precision() const noexcept {
    return precision.param_dtype || precision.reduce_dtype || precision.buffer_dtype ||
           precision.output_dtype;
  }
  std::vector<std::string> notices;  // options that were read and change nothing here
};

// The settings of a plugin that may leave things out. Errors  throws kEnvInvalid naming a variable
// that cannot be read, kInvalidArgument for options that contradict each other, kUnsupported naming
// what is not there yet.
[[nodiscard]] FsdpSettings resolve(const FullyShardedDataParallelPlugin& plugin,
                                   const EnvLookup& env);

// Whether the launcher asks for FSDP: ACCELERATE_USE_FSDP. Errors as resolve().
[[nodiscard]] bool environment_wants_fsdp(const EnvLookup& env);

}  // namespace accel::sharding
