// From the peer's options to what is done here.
//
// For each option: what the plugin says, else its variable, else the default. Options whose peer
// meaning has a counterpart here become settings; those that only steer when the peer communicates
// (prefetch, all-gather limits) become a notice; those that would change memory or numbers and are
// not there yet are refused, never ignored.

#include "libaccel/sharding/fsdp_settings.h"

#include <charconv>
#include <string_view>
#include <utility>

#include <accel/error.h>

namespace accel::sharding {
namespace {

constexpr std::int64_t kPeerNumbersStartAt = 1;

std::optional<std::string> text_of(const EnvLookup& env, std::string_view name) {
  std::optional<std::string> text = env(name);
  if (text && text->empty()) text.reset();
  return text;
}

Error invalid(std::string_view name, std::string_view value, const std::string& expected) {
  return Error(ErrorCode::kEnvInvalid,
               std::string(name) + " is '" + std::string(value) + "', expected " + expected);
}

std::optional<bool> flag_of(const EnvLookup& env, std::string_view name) {
  const auto text = text_of(env, name);
  if (!text) return std::nullopt;
  Result<bool> flag = parse_env_bool(name, *text);
  if (!flag) throw std::move(flag).error();
  return *flag;
}

std::optional<std::int64_t> number_of(const EnvLookup& env, std::string_view name) {
  const auto text = text_of(env, name);
  if (!text) return std::nullopt;
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc() || end != text->data() + text->size()) {
    throw invalid(name, *text, "a whole number");
  }
  return number;
}

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
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  const std::int64_t index = number - kPeerNumbersStartAt;
  if (error == std::errc() && end == text->data() + text->size() && index >= 0 &&
      index < std::ssize(rows)) {
    return rows[static_cast<std::size_t>(index)].value;
  }
  try {
    return parse<E>(*text);
  } catch (const Error&) {
    throw invalid(name, *text, "one of " + texts<E>());
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
      plugin.fsdp_version ? *plugin.fsdp_version : number_of(env, "FSDP_VERSION").value_or(1);
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
  if (settings.wrap == AutoWrapPolicy::kSizeBasedWrap) {
    settings.min_num_params = plugin.min_num_params
                                  ? *plugin.min_num_params
                                  : number_of(env, "FSDP_MIN_NUM_PARAMS").value_or(0);
    if (settings.min_num_params < 0) {
      throw Error(
          ErrorCode::kInvalidArgument,
          "min_num_params is " + std::to_string(settings.min_num_params) + ", expected at least 0");
    }
    if (settings.min_num_params == 0) settings.wrap = AutoWrapPolicy::kNoWrap;
  }
}

MixedPrecisionPolicy policy_of(const std::string& text, int version) {
  const std::pair<std::string_view, c10::ScalarType> names[] = {
      {"bf16", c10::kBFloat16}, {"fp16", c10::kHalf}, {"fp32", c10::kFloat}};
  for (const auto& [name, dtype] : names) {
    if (name != text) continue;
    MixedPrecisionPolicy policy{.param_dtype = dtype, .reduce_dtype = dtype};
    (version == 1 ? policy.buffer_dtype : policy.output_dtype) = dtype;
    return policy;
  }
  throw Error(ErrorCode::kInvalidArgument,
              "mixed_precision_policy is '" + text + "', expected bf16, fp16 or fp32");
}

MixedPrecisionPolicy precision_of(const FullyShardedDataParallelPlugin& plugin,
                                  const EnvLookup& env) {
  if (!plugin.mixed_precision_policy) return {};
  if (const auto* text = std::get_if<std::string>(&*plugin.mixed_precision_policy))
    return policy_of(*text, version_of(plugin, env));
  MixedPrecisionPolicy policy = std::get<MixedPrecisionPolicy>(*plugin.mixed_precision_policy);
  if (!policy.reduce_dtype) policy.reduce_dtype = policy.param_dtype;
  const std::pair<const char*, std::optional<c10::ScalarType>> fields[] = {
      {"param_dtype", policy.param_dtype},
      {"reduce_dtype", policy.reduce_dtype},
      {"buffer_dtype", policy.buffer_dtype},
      {"output_dtype", policy.output_dtype}};
  for (const auto& [name, dtype] : fields) {
    if (!dtype || *dtype == c10::kBFloat16 || *dtype == c10::kHalf || *dtype == c10::kFloat)
      continue;
    throw Error(ErrorCode::kInvalidArgument,
                std::string(name) + " of the mixed_precision_policy is " + c10::toString(*dtype) +
                    ", expected BFloat16, Half or Float");
  }
  return policy;
}

// What would change memory or numbers and is not there.
void refuse_what_is_missing(const FullyShardedDataParallelPlugin& plugin, const EnvLookup& env) {
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorCode::kUnsupported, what + " is not part of this build yet", "leave it out");
  };
  if (plugin.cpu_offload ? *plugin.cpu_offload
                         : flag_of(env, "FSDP_OFFLOAD_PARAMS").value_or(false)) {
    refuse("cpu_offload (FSDP_OFFLOAD_PARAMS)");
  }
  for (const char* name :
       {"FSDP_ACTIVATION_CHECKPOINTING", "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD"}) {
    if (flag_of(env, name).value_or(false)) refuse(name);
  }
}

void note_what_changes_nothing(FsdpSettings& settings, const EnvLookup& env) {
  const auto note = [&](std::string_view name, std::string_view why) {
    settings.notices.push_back(std::string(name) + " has no effect: " + std::string(why));
  };
  if (const auto text = text_of(env, "FSDP_BACKWARD_PREFETCH"); text && *text != "NO_PREFETCH") {
    note("FSDP_BACKWARD_PREFETCH", "the ranks of a node read each other's shards where they are");
  }
  if (flag_of(env, "FSDP_FORWARD_PREFETCH").value_or(false)) {
    note("FSDP_FORWARD_PREFETCH", "the ranks of a node read each other's shards where they are");
  }
  if (!flag_of(env, "FSDP_USE_ORIG_PARAMS").value_or(true)) {
    note("FSDP_USE_ORIG_PARAMS=false", "the model keeps its own parameters always");
  }
}

}  // namespace

bool environment_wants_fsdp(const EnvLookup& env) {
  return flag_of(env, "ACCELERATE_USE_FSDP").value_or(false);
}

FsdpSettings resolve(const FullyShardedDataParallelPlugin& plugin, const EnvLookup& env) {
  FsdpSettings settings;
  settings.strategy = strategy_of(plugin, env);
  set_wrap(settings, plugin, env);
  settings.ignored_modules = plugin.ignored_modules
                                 ? *plugin.ignored_modules
                                 : text_of(env, "FSDP_IGNORED_MODULES").value_or("");
  settings.sync_module_states = plugin.sync_module_states
                                    ? *plugin.sync_module_states
                                    : flag_of(env, "FSDP_SYNC_MODULE_STATES").value_or(true);
  settings.precision = precision_of(plugin, env);
  refuse_what_is_missing(plugin, env);
  note_what_changes_nothing(settings, env);
  return settings;
}

}  // namespace accel::sharding
