#include "libaccel/engine/settings/deepspeed_config.h"

#include <cmath>
#include <limits>
#include <optional>
#include <string_view>

#include <nlohmann/json.hpp>

#include <accel/error.h>

#include "runtime/split.h"

namespace accel::sharding {
namespace {

using OrderedJson = nlohmann::ordered_json;  // as the file has it

int stage_of(const FsdpSettings& settings) {
  if (settings.strategy == ShardingStrategy::kNoShard) return 0;
  if (settings.keeps_whole_gradients) return 1;
  return settings.strategy == ShardingStrategy::kShardGradOp ? 2 : 3;
}

OrderedJson* find_place(OrderedJson& config, std::string_view key) {
  OrderedJson* node = &config;
  for (const std::string_view name : split(key, '.')) {
    if (!node->is_object() || !node->contains(std::string(name))) return nullptr;
    node = &(*node)[std::string(name)];
  }
  return node;
}

std::string python_text(const OrderedJson& value) {
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_number_float() && std::isinf(value.get<double>())) return "inf";
  if (value.is_string()) return "'" + value.get<std::string>() + "'";
  if (!value.is_structured()) return value.dump();
  std::string text;
  for (const auto& [key, item] : value.items()) {
    if (!text.empty()) text += ", ";
    if (value.is_object()) text += "'" + key + "': ";
    text += python_text(item);
  }
  return value.is_object() ? "{" + text + "}" : "[" + text + "]";
}

std::optional<std::int64_t> whole_number(OrderedJson& config, std::string_view key) {
  const OrderedJson* const found = find_place(config, key);
  if (found == nullptr || !found->is_number_integer()) return std::nullopt;
  return found->get<std::int64_t>();
}

}  // namespace

std::string config_of(const FsdpSettings& settings,
                      std::optional<int> gradient_accumulation_steps) {
  const auto or_automatic = [](const auto& number) {
    return number ? OrderedJson(*number) : OrderedJson("auto");
  };
  const auto place = [](const std::string& device, const std::string& folder) {
    return OrderedJson{{"device", device},
                       {"nvme_path", folder.empty() ? OrderedJson() : OrderedJson(folder)}};
  };
  const OrderedJson config = {
      {"train_batch_size", "auto"},
      {"train_micro_batch_size_per_gpu", "auto"},
      {"gradient_accumulation_steps", or_automatic(gradient_accumulation_steps)},
      {"zero_optimization",
       {{"stage", stage_of(settings)},
        {"offload_optimizer", place(settings.offload_optimizer_device, settings.optimizer_folder)},
        {"offload_param", place(settings.offload_param_device, settings.parameter_folder)},
        {"stage3_gather_16bit_weights_on_model_save", false}}},
      {"gradient_clipping", or_automatic(settings.gradient_clipping)}};
  return config.dump();
}

std::string filled_config(const std::string& config, const ConfigValues& values) {
  OrderedJson filled = OrderedJson::parse(config);
  for (const auto& [key, value] : values) {
    OrderedJson* const place = find_place(filled, key);
    if (place == nullptr || *place != "auto") continue;
    std::visit([place](const auto& typed) { *place = typed; }, value);
  }
  return filled.dump();
}

std::string printed_config(const std::string& config, PrecisionType precision) {
  OrderedJson printed = OrderedJson::parse(config);
  printed["steps_per_print"] = std::numeric_limits<double>::infinity();
  const auto add = [&printed](const char* section, OrderedJson switches) {
    if (!printed.contains(section)) printed[section] = std::move(switches);
  };
  if (precision == PrecisionType::kFp16)
    add("fp16", OrderedJson::object({{"enabled", true}, {"auto_cast", true}}));
  if (precision == PrecisionType::kBf16) add("bf16", OrderedJson::object({{"enabled", true}}));
  add("fp16", OrderedJson::object({{"enabled", false}}));
  add("bf16", OrderedJson::object({{"enabled", false}}));
  for (const auto& [section, type] :
       {std::pair("fp16", PrecisionType::kFp16), std::pair("bf16", PrecisionType::kBf16)}) {
    OrderedJson& enabled = printed[section]["enabled"];
    if (enabled == "auto") enabled = precision == type;
  }
  return python_text(printed);
}

void check_batch_sizes(const std::string& config,
                       std::optional<std::int64_t> micro_batch_size,
                       std::int64_t gradient_accumulation_steps,
                       std::int64_t num_processes) {
  OrderedJson parsed = OrderedJson::parse(config);
  const auto total = whole_number(parsed, "train_batch_size");
  auto micro = whole_number(parsed, "train_micro_batch_size_per_gpu");
  if (!micro) micro = micro_batch_size;
  if (!total || !micro || *total == *micro * gradient_accumulation_steps * num_processes) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      "Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu "
      "* gradient_acc_step * world_size " +
          std::to_string(*total) + " != " + std::to_string(*micro) + " * " +
          std::to_string(gradient_accumulation_steps) + " * " + std::to_string(num_processes),
      "set train_batch_size to \"auto\" in DeepSpeed's file, or to that product");
}

}  // namespace accel::sharding
