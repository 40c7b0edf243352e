// FsdpSettings: what FullyShardedDataParallelPlugin and the FSDP_* environment come to, checked.
//
// Threads:  pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <accel/env_contract.h>
#include <accel/fsdp.h>

#include "libaccel/engine/process/mesh.h"

namespace accel::sharding {

struct PagingLimits {
  int units_ahead = 1;  // fetched before they are needed; 0: none
  // The one that is used, those that are fetched, and one that is on its way out.
  std::size_t live_units = 3;
  std::optional<std::uint64_t>
      max_live_bytes;  // in place of live_units; the variable may say it too
};

struct FsdpSettings {
  ShardingStrategy strategy = ShardingStrategy::kFullShard;
  AutoWrapPolicy wrap = AutoWrapPolicy::kNoWrap;
  std::vector<std::string> transformer_classes;  // for kTransformerBasedWrap; not empty then
  std::int64_t min_num_params = 0;               // for kSizeBasedWrap; above 0 then
  std::string ignored_modules;                   // a regular expression; empty: none
  std::vector<std::string> ignored_names;        // of modules, instead of an expression
  bool sync_module_states = true;
  bool cpu_ram_efficient_loading = false;
  bool shard_by_tensor = false;
  bool recomputes_activations = false;  // of units; then wrap is not kNoWrap
  RecomputeGranularity recompute_granularity = RecomputeGranularity::kFull;
  bool keeps_whole_gradients = false;       // ZeRO-1
  PagingLimits paging;                      // of FULL_SHARD over several nodes
  std::optional<double> gradient_clipping;  // what steps clip by; above 0
  int version = 1;
  StateDictType state_dict_type = StateDictType::kSharded;
  StateDictConfig state_dict;        // of models
  StateDictConfig optim_state_dict;  // of optimizers
  std::optional<MeshShape> layout;   // of a ParallelismConfig; else the strategy makes one
  // Of DeepSpeed: none or cpu, which are the same on a CPU, or nvme.
  std::string offload_optimizer_device = "none";
  std::string offload_param_device = "none";
  // Where nvme is; else empty.
  std::string optimizer_folder;
  std::string parameter_folder;      // then strategy is kFullShard or kHybridShard
  bool steps_in_backward = false;    // then optimizer_folder is not empty
  std::vector<std::string> notices;  // options that were read and change nothing here
};

// The settings of a plugin that may leave things out. Errors  throws kEnvInvalid naming a variable
// that cannot be read, kInvalidArgument for options that contradict each other, kUnsupported naming
// what is not there yet.
[[nodiscard]] FsdpSettings resolve(const FullyShardedDataParallelPlugin& plugin,
                                   const EnvLookup& env);

// Throws kInvalidArgument where parameters are to lie on a disk, and the strategy leaves them whole. stage: how it is called.
void check_parameter_folder(const FsdpSettings& settings, const std::string& stage);

// Throws kInvalidArgument where steps in the backward are asked for, and states are not on disk.
void check_steps_in_backward(const FsdpSettings& settings);

// What is said once for options that ask for offload to host memory. options: their names.
[[nodiscard]] std::string host_memory_notice(const std::string& options);

// Throws kInvalidArgument for LOCAL_STATE_DICT of version 2, as the peer does.
void check_state_dict_type(StateDictType type, int version);

// The layout of a ParallelismConfig, else how the strategy lays the ranks out; without settings they are copies. A hybrid one divides
// over the ranks of each node. Throws kUnsupported for that when ranks of several nodes could not be put together by nodes; says
// why (nodes with unequal numbers of ranks).
[[nodiscard]] MeshShape mesh_shape(const std::optional<FsdpSettings>& settings,
                                   const ProcessGroup& world);

// Whether the launcher asks for FSDP: ACCELERATE_USE_FSDP. Errors as resolve().
[[nodiscard]] bool environment_wants_fsdp(const EnvLookup& env);

}  // namespace accel::sharding
