#include "libaccel/engine/settings/deepspeed_options.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include <accel/error.h>

#include "libaccel/engine/settings/deepspeed_file.h"
#include "libaccel/engine/settings/variable_values.h"
#include "libaccel/engine/settings/zero_settings.h"
#include "runtime/json_argument.h"
#include "runtime/split.h"
#include "runtime/text/joined.h"

namespace accel {
namespace {

constexpr std::uintmax_t kMostBytes = 1 << 20;

// What messages call it, and its text.
struct Source {
  std::string name;
  std::string text;
};

Source read_source(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    if (auto json = json_in_place_of_path(path))
      return {"the JSON of DeepSpeed's configuration", *std::move(json)};
  }
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  const bool is_small = !error && bytes <= kMostBytes;
  std::string text(is_small ? bytes : 0, '\0');
  if (!is_small || !file.read(text.data(), static_cast<std::streamsize>(bytes))) {
    throw Error(ErrorCode::kConfigUnreadable,
                "the configuration file of DeepSpeed '" + path.substr(0, 256) +
                    "' is no file of at most 1 MiB that can be read",
                "give the path of a JSON file, the JSON itself, or its base64 in "
                "deepspeed_config_file (hf_ds_config of the plugin)");
  }
  return {path, std::move(text)};
}

std::optional<std::string> source_of(const AcceleratorOptions& options, const EnvLookup& env) {
  auto source = options.deepspeed_plugin ? options.deepspeed_plugin->hf_ds_config : std::nullopt;
  if (!source) source = sharding::text_of(env, "ACCELERATE_DEEPSPEED_CONFIG_FILE");
  return source == "none" ? std::nullopt : source;
}

// Fields that a configuration file of the launcher fixes, and DeepSpeed's own file too: which of the two holds would be a guess.
// The fields, and the refusal, are those of Accelerate.
void refuse_fields_of_two_files(const std::string& source, const EnvLookup& env) {
  constexpr std::array<std::string_view, 9> kOfDeepSpeedsFile = {
      "gradient_accumulation_steps",
      "gradient_clipping",
      "zero_stage",
      "offload_optimizer_device",
      "offload_param_device",
      "offload_param_nvme_path",
      "offload_optimizer_nvme_path",
      "zero3_save_16bit_model",
      "mixed_precision",
  };
  const auto said = sharding::text_of(env, "ACCELERATE_CONFIG_DS_FIELDS").value_or("");
  std::vector<std::string_view> twice;
  for (const std::string_view field : split(said, ',')) {
    if (std::ranges::find(kOfDeepSpeedsFile, field) != kOfDeepSpeedsFile.end())
      twice.push_back(field);
  }
  if (twice.empty()) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      joined(twice, ", ") +
          " (ACCELERATE_CONFIG_DS_FIELDS) stand in the launcher's "
          "configuration file, and " +
          source +
          " is in use too. When using `deepspeed_config_file`, the following accelerate "
          "config variables will be ignored: " +
          joined(kOfDeepSpeedsFile, ", "),
      "Please specify them appropriately in the DeepSpeed config file. If you are using an "
      "accelerate config file, remove others config variables mentioned in the above "
      "specified list. The easiest method is to create a new config following the "
      "questionnaire via `accel config`. It will only ask for the necessary config variables "
      "when using `deepspeed_config_file`");
}

// The file's number of batches; a plugin keeps the rest.
void set_accumulation(AcceleratorOptions& options, int steps) {
  if (!options.gradient_accumulation_plugin)
    options.gradient_accumulation_plugin = GradientAccumulationPlugin{.adjust_scheduler = false};
  options.gradient_accumulation_plugin->num_steps = steps;
  options.gradient_accumulation_steps = 1;
}

// The first of several is active.
void select_first_plugin(AcceleratorOptions& options) {
  const auto& plugins = options.deepspeed_plugins;
  if (plugins.empty()) return;
  for (auto plugin = plugins.begin(); plugin != plugins.end(); ++plugin) {
    const bool is_named_before = std::any_of(
        plugins.begin(), plugin, [&](const auto& before) { return before.first == plugin->first; });
    if (!is_named_before) continue;
    throw Error(ErrorCode::kInvalidArgument,
                "deepspeed_plugins has '" + plugin->first + "' twice",
                "give each plugin a name of its own");
  }
  if (!options.deepspeed_plugin) options.deepspeed_plugin = plugins.front().second;
}

}  // namespace

bool wants_deepspeed(const AcceleratorOptions& options, const EnvLookup& env) {
  if (options.fsdp_plugin) return false;
  return options.deepspeed_plugin || sharding::environment_wants_deepspeed(env);
}

DeepSpeedOptions read_deepspeed_options(AcceleratorOptions options, const EnvLookup& env) {
  DeepSpeedOptions read;
  read.options = std::move(options);
  AcceleratorOptions& result = read.options;
  select_first_plugin(result);
  const auto given_source = source_of(result, env);
  if (!wants_deepspeed(result, env)) return read;
  if (!result.deepspeed_plugin) result.deepspeed_plugin.emplace();
  if (!given_source) return read;
  const Source source = read_source(*given_source);
  refuse_fields_of_two_files(source.name, env);
  sharding::DeepSpeedFile file = sharding::parse_deepspeed_file(source.text, source.name);
  read.precision = {.file = source.name,
                    .is_fp16 = file.is_fp16,
                    .is_bf16 = file.is_bf16,
                    .loss_scale = file.loss_scale};
  if (file.gradient_accumulation_steps) set_accumulation(result, *file.gradient_accumulation_steps);
  DeepSpeedPlugin plugin = *result.deepspeed_plugin;
  if (file.zero_stage) plugin.zero_stage = file.zero_stage;
  if (file.gradient_clipping) plugin.gradient_clipping = file.gradient_clipping;
  const auto in_environment = sharding::text_of(env, "ACCELERATE_GRADIENT_CLIPPING");
  const bool is_clipping_said =
      plugin.gradient_clipping || (in_environment && *in_environment != "none");
  if (file.clips_automatically && !is_clipping_said)
    plugin.gradient_clipping = sharding::kAutomaticClipping;
  if (file.offload_optimizer_device)
    plugin.offload_optimizer_device = file.offload_optimizer_device;
  if (file.offload_param_device) plugin.offload_param_device = file.offload_param_device;
  if (file.offload_optimizer_nvme_path)
    plugin.offload_optimizer_nvme_path = file.offload_optimizer_nvme_path;
  if (file.offload_param_nvme_path) plugin.offload_param_nvme_path = file.offload_param_nvme_path;
  result.deepspeed_plugin = std::move(plugin);
  read.notices = std::move(file.notices);
  read.optimizer = std::move(file.optimizer);
  read.scheduler = std::move(file.scheduler);
  read.config = std::move(file.config);
  return read;
}

}  // namespace accel
