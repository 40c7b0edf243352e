#include "libaccel/engine/settings/zero_settings.h"

#include <cmath>
#include <string>
#include <string_view>

#include <accel/error.h>

#include "libaccel/engine/settings/variable_values.h"

namespace accel::sharding {
namespace {

constexpr int kDefaultStage = 2;
constexpr const char* kClippingVariable = "ACCELERATE_GRADIENT_CLIPPING";

// Nothing for "none" and "auto": Accelerate writes them where DeepSpeed's own configuration decides.
template <typename Number>
std::optional<Number> decided_number(const EnvLookup& env,
                                     std::string_view name,
                                     const char* expected) {
  const auto text = text_of(env, name);
  if (text == "none" || text == "auto") return std::nullopt;
  return number_of<Number>(env, name, expected);
}

// none, cpu or nvme.
std::string offload_device(const char* option,
                           std::string_view variable,
                           const std::optional<std::string>& given,
                           const EnvLookup& env) {
  const std::string device = given ? *given : text_of(env, variable).value_or("none");
  if (device == "none" || device == "cpu" || device == "nvme") return device;
  throw Error(given ? ErrorCode::kInvalidArgument : ErrorCode::kEnvInvalid,
              std::string(given ? std::string_view(option) : variable) + " is '" + device +
                  "', expected none, cpu or nvme",
              "set it to cpu or none");
}

// option: offload_optimizer or offload_param; variable: of the folder.
std::string offload_folder(const std::string& option,
                           const char* variable,
                           const std::optional<std::string>& given,
                           const EnvLookup& env) {
  const auto folder = given ? given : text_of(env, variable);
  if (folder && !folder->empty() && folder != "none") return *folder;
  throw Error(
      ErrorCode::kInvalidArgument,
      option + "_device is 'nvme', and no folder is named for it",
      "set " + option + "_nvme_path (" + std::string(variable) + ") to a folder on a fast disk");
}

void set_offload_devices(FsdpSettings& settings,
                         const DeepSpeedPlugin& plugin,
                         const EnvLookup& env) {
  settings.offload_optimizer_device =
      offload_device("offload_optimizer_device",
                     "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
                     plugin.offload_optimizer_device,
                     env);
  settings.offload_param_device = offload_device("offload_param_device",
                                                 "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
                                                 plugin.offload_param_device,
                                                 env);
  if (settings.offload_optimizer_device == "nvme")
    settings.optimizer_folder = offload_folder("offload_optimizer",
                                               "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH",
                                               plugin.offload_optimizer_nvme_path,
                                               env);
  if (settings.offload_param_device == "nvme")
    settings.parameter_folder = offload_folder("offload_param",
                                               "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH",
                                               plugin.offload_param_nvme_path,
                                               env);
  std::string options;
  if (settings.offload_optimizer_device == "cpu") options = "offload_optimizer_device";
  if (settings.offload_param_device == "cpu")
    options += std::string(options.empty() ? "" : ", ") + "offload_param_device";
  if (!options.empty()) settings.notices.push_back(host_memory_notice(options + " cpu"));
}

std::optional<double> clipping_of(const DeepSpeedPlugin& plugin, const EnvLookup& env) {
  constexpr const char* kExpected = "0 (no clipping) or a norm above it";
  std::optional<double> norm = plugin.gradient_clipping;
  const bool is_from_plugin = norm.has_value();
  if (!norm && text_of(env, kClippingVariable) == "auto") norm = kAutomaticClipping;
  if (!norm) norm = decided_number<double>(env, kClippingVariable, kExpected);
  if (norm && !(*norm >= 0 && std::isfinite(*norm))) {
    throw Error(is_from_plugin ? ErrorCode::kInvalidArgument : ErrorCode::kEnvInvalid,
                std::string(is_from_plugin ? "gradient_clipping" : kClippingVariable) + " is " +
                    std::to_string(*norm) + ", expected " + kExpected);
  }
  return norm == 0.0 ? std::nullopt : norm;
}

}  // namespace

bool environment_wants_deepspeed(const EnvLookup& env) {
  return flag_of(env, "ACCELERATE_USE_DEEPSPEED").value_or(false);
}

FsdpSettings resolve_zero(const DeepSpeedPlugin& plugin, const EnvLookup& env) {
  const int stage = plugin.zero_stage ? *plugin.zero_stage
                                      : decided_number<int>(
                                            env, "ACCELERATE_DEEPSPEED_ZERO_STAGE", "0, 1, 2 or 3")
                                            .value_or(kDefaultStage);
  FsdpSettings settings;
  set_offload_devices(settings, plugin, env);
  settings.gradient_clipping = clipping_of(plugin, env);
  settings.steps_in_backward = plugin.step_in_backward;
  check_steps_in_backward(settings);
  switch (stage) {
    case 0:
      settings.strategy = ShardingStrategy::kNoShard;
      break;
    case 1:
      settings.strategy = ShardingStrategy::kShardGradOp;
      settings.keeps_whole_gradients = true;
      break;
    case 2:
      settings.strategy = ShardingStrategy::kShardGradOp;
      break;
    case 3:
      settings.strategy = ShardingStrategy::kFullShard;
      break;
    default:
      throw Error(ErrorCode::kInvalidArgument,
                  "zero_stage is " + std::to_string(stage) + ", expected 0, 1, 2 or 3");
  }
  check_parameter_folder(settings, "zero_stage " + std::to_string(stage));
  return settings;
}

}  // namespace accel::sharding
