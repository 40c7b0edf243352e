// From the peer's options to what is done here.
//
// For each option: what the plugin says, else its variable, else the default. Options whose peer
// meaning has a counterpart here become settings; those that can change nothing become a notice;
// those that would change memory or numbers and are not there yet are refused, never ignored.

#include "libaccel/engine/settings/fsdp_settings.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <accel/error.h>

#include "libaccel/engine/process/process_group.h"
#include "libaccel/engine/settings/variable_values.h"
#include "runtime/text/number_text.h"

namespace accel::sharding {
namespace {

constexpr std::int64_t kPeerNumbersStartAt = 1;
constexpr const char* kWholeNumber = "a whole number";

template <typename E>
std::string texts() {
  std::string all;
  for (const EnumText<E>& row : enum_texts<E>())
    all += (all.empty() ? "" : ", ") + std::string(row.text);
  return all;
}

// A name, or the peer's number.
template <typename E>
std::optional<E> choice_of(const EnvLookup& env, std::string_view name) {
  const auto text = text_of(env, name);
  if (!text) return std::nullopt;
  const auto rows = enum_texts<E>();
  const auto number = accel::number_of<std::int64_t>(*text);
  if (number && *number >= kPeerNumbersStartAt &&
      *number < kPeerNumbersStartAt + std::ssize(rows)) {
    return rows[static_cast<std::size_t>(*number - kPeerNumbersStartAt)].value;
  }
  try {
    return parse<E>(*text);
  } catch (const Error&) {
    throw invalid_variable(name, *text, "one of " + texts<E>());
  }
}

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    std::string part = text.substr(begin, end - begin);
    part.erase(0, part.find_first_not_of(" \t"));
    part.erase(part.find_last_not_of(" \t") + 1);
    if (!part.empty()) parts.push_back(std::move(part));
    begin = end + 1;
  }
  return parts;
}

int version_of(const FullyShardedDataParallelPlugin& plugin, const EnvLookup& env) {
  const std::int64_t version =
      plugin.fsdp_version ? *plugin.fsdp_version
                          : number_of<std::int64_t>(env, "FSDP_VERSION", kWholeNumber).value_or(1);
  if (version != 1 && version != 2) {
    throw Error(ErrorCode::kInvalidArgument,
                "fsdp_version is " + std::to_string(version) + ", expected 1 or 2");
  }
  return static_cast<int>(version);
}

ShardingStrategy strategy_of(const FullyShardedDataParallelPlugin& plugin, const EnvLookup& env) {
  if (version_of(plugin, env) == 2) {
    if (plugin.sharding_strategy && !plugin.reshard_after_forward) return *plugin.sharding_strategy;
    const bool reshards = plugin.reshard_after_forward
                              ? *plugin.reshard_after_forward
                              : flag_of(env, "FSDP_RESHARD_AFTER_FORWARD").value_or(true);
    return reshards ? ShardingStrategy::kFullShard : ShardingStrategy::kShardGradOp;
  }
  if (plugin.reshard_after_forward) {
    throw Error(ErrorCode::kInvalidArgument,
                "reshard_after_forward is an option of FSDP version 2",
                "set fsdp_version = 2, or name a sharding_strategy");
  }
  if (plugin.sharding_strategy) return *plugin.sharding_strategy;
  return choice_of<ShardingStrategy>(env, "FSDP_SHARDING_STRATEGY")
      .value_or(ShardingStrategy::kFullShard);
}

void set_wrap(FsdpSettings& settings,
              const FullyShardedDataParallelPlugin& plugin,
              const EnvLookup& env) {
  settings.wrap = plugin.auto_wrap_policy ? *plugin.auto_wrap_policy
                                          : choice_of<AutoWrapPolicy>(env, "FSDP_AUTO_WRAP_POLICY")
                                                .value_or(AutoWrapPolicy::kNoWrap);
  if (settings.wrap == AutoWrapPolicy::kTransformerBasedWrap) {
    settings.transformer_classes =
        plugin.transformer_cls_names_to_wrap
            ? *plugin.transformer_cls_names_to_wrap
            : split_at_commas(text_of(env, "FSDP_TRANSFORMER_CLS_TO_WRAP").value_or(""));
    if (settings.transformer_classes.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "TRANSFORMER_BASED_WRAP names no class of layers",
                  "set transformer_cls_names_to_wrap, or FSDP_TRANSFORMER_CLS_TO_WRAP");
    }
  }
  const std::int64_t min_num_params =
      plugin.min_num_params
          ? *plugin.min_num_params
          : number_of<std::int64_t>(env, "FSDP_MIN_NUM_PARAMS", kWholeNumber).value_or(0);
  if (min_num_params < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "min_num_params is " + std::to_string(min_num_params) + ", expected at least 0");
  }
  if (settings.wrap != AutoWrapPolicy::kSizeBasedWrap) return;
  settings.min_num_params = min_num_params;
  if (min_num_params == 0) settings.wrap = AutoWrapPolicy::kNoWrap;
}

void set_state_dict(FsdpSettings& settings,
                    const FullyShardedDataParallelPlugin& plugin,
                    const EnvLookup& env) {
  settings.state_dict_type =
      plugin.state_dict_type
          ? *plugin.state_dict_type
          : choice_of<StateDictType>(env, "FSDP_STATE_DICT_TYPE").value_or(StateDictType::kSharded);
  check_state_dict_type(settings.state_dict_type, settings.version);
  settings.state_dict = plugin.state_dict_config.value_or(StateDictConfig{});
  settings.optim_state_dict = plugin.optim_state_dict_config.value_or(StateDictConfig{});
}

// With the conditions of the peer.
void set_offload_of_activations(FsdpSettings& settings, const EnvLookup& env) {
  constexpr const char* kVariable = "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD";
  if (!flag_of(env, kVariable).value_or(false)) return;
  if (!settings.recomputes_activations || settings.version != 2) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(kVariable) +
                    " is true, which needs activation_checkpointing and version 2 of FSDP",
                "set FSDP_ACTIVATION_CHECKPOINTING and FSDP_VERSION=2, or leave it out");
  }
  settings.notices.push_back(std::string(kVariable) +
                             " true changes nothing: models train on the CPU, so the inputs of "
                             "units are in host memory already; SaveOnDisk "
                             "(accel/save_on_disk.h) has activations on a disk");
}

void set_recomputation(FsdpSettings& settings,
                       const FullyShardedDataParallelPlugin& plugin,
                       const EnvLookup& env) {
  settings.recomputes_activations =
      plugin.activation_checkpointing
          ? *plugin.activation_checkpointing
          : flag_of(env, "FSDP_ACTIVATION_CHECKPOINTING").value_or(false);
  set_offload_of_activations(settings, env);
  settings.recompute_granularity =
      plugin.recompute_granularity
          ? *plugin.recompute_granularity
          : choice_of<RecomputeGranularity>(env, "ACCEL_FSDP_RECOMPUTE_GRANULARITY")
                .value_or(RecomputeGranularity::kFull);
  if (settings.recompute_granularity == RecomputeGranularity::kSelective &&
      !settings.recomputes_activations) {
    throw Error(ErrorCode::kInvalidArgument,
                "recompute_granularity (ACCEL_FSDP_RECOMPUTE_GRANULARITY) is 'selective', and "
                "nothing is computed again",
                "set activation_checkpointing (FSDP_ACTIVATION_CHECKPOINTING), or leave it out");
  }
  if (!settings.recomputes_activations || settings.wrap != AutoWrapPolicy::kNoWrap) return;
  throw Error(ErrorCode::kInvalidArgument,
              "activation_checkpointing (FSDP_ACTIVATION_CHECKPOINTING) computes units again, and "
              "without an auto_wrap_policy (FSDP_AUTO_WRAP_POLICY) there are none",
              "set TRANSFORMER_BASED_WRAP with the class of the layers, or SIZE_BASED_WRAP with "
              "min_num_params above 0");
}

void set_ignored(FsdpSettings& settings,
                 const FullyShardedDataParallelPlugin& plugin,
                 const EnvLookup& env) {
  if (!plugin.ignored_modules) {
    settings.ignored_modules = text_of(env, "FSDP_IGNORED_MODULES").value_or("");
  } else if (const auto* names = std::get_if<std::vector<std::string>>(&*plugin.ignored_modules)) {
    settings.ignored_names = *names;
  } else {
    settings.ignored_modules = std::get<std::string>(*plugin.ignored_modules);
  }
}

void set_loading(FsdpSettings& settings,
                 const FullyShardedDataParallelPlugin& plugin,
                 const EnvLookup& env) {
  settings.sync_module_states = plugin.sync_module_states
                                    ? *plugin.sync_module_states
                                    : flag_of(env, "FSDP_SYNC_MODULE_STATES").value_or(true);
  settings.cpu_ram_efficient_loading =
      plugin.cpu_ram_efficient_loading
          ? *plugin.cpu_ram_efficient_loading
          : flag_of(env, "FSDP_CPU_RAM_EFFICIENT_LOADING").value_or(false);
  if (!settings.cpu_ram_efficient_loading || settings.sync_module_states) return;
  throw Error(ErrorCode::kInvalidArgument,
              "cpu_ram_efficient_loading (FSDP_CPU_RAM_EFFICIENT_LOADING) is true and "
              "sync_module_states (FSDP_SYNC_MODULE_STATES) is false: then nobody gives the ranks "
              "without the model its values",
              "set sync_module_states to true, or cpu_ram_efficient_loading to false");
}

// The pager fetches in forward as in backward: it knows a step, not its halves.
void set_prefetch(FsdpSettings& settings,
                  const FullyShardedDataParallelPlugin& plugin,
                  const EnvLookup& env) {
  constexpr int kAheadWithoutLimit = 4;
  const auto backward = plugin.backward_prefetch
                            ? plugin.backward_prefetch
                            : choice_of<BackwardPrefetch>(env, "FSDP_BACKWARD_PREFETCH");
  const bool forward = plugin.forward_prefetch
                           ? *plugin.forward_prefetch
                           : flag_of(env, "FSDP_FORWARD_PREFETCH").value_or(false);
  const bool is_limited = plugin.limit_all_gathers.value_or(true);
  PagingLimits& paging = settings.paging;
  if (!is_limited) paging.units_ahead = kAheadWithoutLimit;
  if (backward == BackwardPrefetch::kNoPrefetch && !forward) paging.units_ahead = 0;
  paging.live_units = static_cast<std::size_t>(is_limited ? 3 : kAheadWithoutLimit + 2);
  paging.max_live_bytes = plugin.max_live_bytes;
}

void note_what_changes_nothing(FsdpSettings& settings,
                               const FullyShardedDataParallelPlugin& plugin,
                               const EnvLookup& env) {
  const bool uses_own = plugin.use_orig_params
                            ? *plugin.use_orig_params
                            : flag_of(env, "FSDP_USE_ORIG_PARAMS").value_or(true);
  if (!uses_own) {
    settings.notices.emplace_back(
        "use_orig_params (FSDP_USE_ORIG_PARAMS) false has no effect: the model keeps its own "
        "parameters always");
  }
  const bool is_offloaded = plugin.cpu_offload
                                ? *plugin.cpu_offload
                                : flag_of(env, "FSDP_OFFLOAD_PARAMS").value_or(false);
  if (!is_offloaded) return;
  settings.offload_param_device = "cpu";
  settings.notices.push_back(host_memory_notice("cpu_offload (FSDP_OFFLOAD_PARAMS) true"));
}

}  // namespace

std::string host_memory_notice(const std::string& options) {
  return options +
         " changes nothing: models train on the CPU, so the shards of parameters, gradients and "
         "optimizer states are in host memory already";
}

void check_state_dict_type(StateDictType type, int version) {
  if (version != 2 || type != StateDictType::kLocal) return;
  throw Error(ErrorCode::kInvalidArgument,
              "LOCAL_STATE_DICT is not for FSDP version 2",
              "use SHARDED_STATE_DICT or FULL_STATE_DICT");
}

MeshShape mesh_shape(const std::optional<FsdpSettings>& settings, const ProcessGroup& world) {
  const ShardingStrategy strategy = settings ? settings->strategy : ShardingStrategy::kNoShard;
  if (strategy == ShardingStrategy::kNoShard) return {.replicate = world.size()};
  if (settings->layout) return *settings->layout;
  const bool is_hybrid =
      strategy == ShardingStrategy::kHybridShard || strategy == ShardingStrategy::kHybridShardZero2;
  const int num_nodes = is_hybrid ? world.layout().num_nodes() : 1;
  if (is_hybrid && num_nodes == 1 && !world.notice().empty()) {
    throw Error(ErrorCode::kUnsupported,
                std::string(to_string(strategy)) +
                    " divides a model over the ranks of each node: " + world.notice(),
                "give every node the same number of ranks, or use SHARD_GRAD_OP");
  }
  return {.replicate = num_nodes, .shard = world.size() / num_nodes};
}

bool environment_wants_fsdp(const EnvLookup& env) {
  return flag_of(env, "ACCELERATE_USE_FSDP").value_or(false);
}

void check_steps_in_backward(const FsdpSettings& settings) {
  if (!settings.steps_in_backward || !settings.optimizer_folder.empty()) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      "step_in_backward is true, and the state of optimizers is in memory: there is no disk "
      "to wait for",
      "set offload_optimizer_nvme_path (and offload_optimizer_device to nvme with ZeRO), or "
      "leave step_in_backward out");
}

void check_parameter_folder(const FsdpSettings& settings, const std::string& stage) {
  const bool divides_parameters = settings.strategy == ShardingStrategy::kFullShard ||
                                  settings.strategy == ShardingStrategy::kHybridShard;
  if (settings.parameter_folder.empty() || divides_parameters) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      "parameters are to lie on disk (offload_param_nvme_path), and with " + stage +
          " each rank has them whole in memory",
      "use zero_stage 3, FULL_SHARD or HYBRID_SHARD, or leave the offload of parameters out");
}

FsdpSettings resolve(const FullyShardedDataParallelPlugin& plugin, const EnvLookup& env) {
  FsdpSettings settings;
  settings.strategy = strategy_of(plugin, env);
  set_wrap(settings, plugin, env);
  set_ignored(settings, plugin, env);
  set_loading(settings, plugin, env);
  set_prefetch(settings, plugin, env);
  settings.shard_by_tensor = plugin.shard_by_tensor;
  settings.version = version_of(plugin, env);
  set_state_dict(settings, plugin, env);
  set_recomputation(settings, plugin, env);
  settings.optimizer_folder = plugin.offload_optimizer_nvme_path.value_or("");
  settings.parameter_folder = plugin.offload_param_nvme_path.value_or("");
  check_parameter_folder(settings, std::string(to_string(settings.strategy)));
  settings.steps_in_backward = plugin.step_in_backward;
  check_steps_in_backward(settings);
  note_what_changes_nothing(settings, plugin, env);
  return settings;
}

}  // namespace accel::sharding
