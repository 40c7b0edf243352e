#include "launcher/config/config_normal_form.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "launcher/config/config_schema.h"
#include "launcher/documents/yaml_scalar.h"
#include "launcher/text/choice_list.h"
#include "runtime/text/letter_case.h"

namespace accel::launcher {
namespace {

// A field, and its default as a plain scalar of YAML; "" for none.
struct Field {
  std::string_view name;
  std::string_view fallback;
};

// Both in the order of the peer's classes.
constexpr Field kBase[] = {
    {"compute_environment", "LOCAL_MACHINE"},
    {"distributed_type", ""},
    {"mixed_precision", ""},
    {"use_cpu", "false"},
    {"debug", "false"},
};
constexpr Field kCluster[] = {
    {"num_processes", "-1"},
    {"machine_rank", "0"},
    {"num_machines", "1"},
    {"gpu_ids", ""},
    {"main_process_ip", ""},
    {"main_process_port", ""},
    {"rdzv_backend", "static"},
    {"same_network", "false"},
    {"main_training_function", "main"},
    {"enable_cpu_affinity", "false"},
    {"fp8_config", ""},
    {"deepspeed_config", ""},
    {"fsdp_config", ""},
    {"parallelism_config", ""},
    {"megatron_lm_config", ""},
    {"mpirun_config", ""},
    {"downcast_bf16", "false"},
    {"tpu_name", ""},
    {"tpu_zone", ""},
    {"tpu_use_cluster", "false"},
    {"tpu_use_sudo", "false"},
    {"command_file", ""},
    {"commands", ""},
    {"tpu_vm", ""},
    {"tpu_env", ""},
    {"dynamo_config", ""},
};
constexpr Field kSagemaker[] = {
    {"ec2_instance_type", ""},
    {"iam_role_name", ""},
    {"image_uri", ""},
    {"profile", ""},
    {"region", "us-east-1"},
    {"num_machines", "1"},
    {"gpu_ids", "all"},
    {"base_job_name", "accelerate-sagemaker-1"},
    {"pytorch_version", "1.10.2"},
    {"transformers_version", "4.17.0"},
    {"py_version", "py38"},
    {"sagemaker_inputs_file", ""},
    {"sagemaker_metrics_file", ""},
    {"additional_args", ""},
    {"dynamo_config", ""},
    {"enable_cpu_affinity", "false"},
};

ConfigValue scalar_of(std::string_view text) {
  const YamlScalar meaning = resolve_yaml_scalar(text);
  if (const auto* number = std::get_if<std::int64_t>(&meaning))
    return {*number, std::string(text), 0};
  if (const auto* flag = std::get_if<bool>(&meaning)) return {*flag, std::string(text), 0};
  return text_value(text);
}

bool is_empty(const ConfigValue& value) {
  const auto* const map = std::get_if<ConfigValue::Map>(&value.data);
  return value.is_null() || (map != nullptr && map->empty());
}

// An unquoted NO, which YAML takes for false, is the word where it is one of several.
ConfigValue as_word(const ConfigValue& value, std::string_view choices) {
  for (const std::string_view choice : split_choices(choices)) {
    const bool is_false = std::holds_alternative<bool>(value.data) && !std::get<bool>(value.data);
    if (uppercase(value.text) == uppercase(choice) || (is_false && uppercase(choice) == "NO"))
      return text_value(choice);
  }
  return value;
}

bool is_on(const ConfigValue* value) {
  const bool* const flag = value == nullptr ? nullptr : std::get_if<bool>(&value->data);
  return flag != nullptr && *flag;
}

// Keys of older versions: fp16 and dynamo_backend of the top.
ConfigValue::Map with_present_keys(const ConfigValue::Map& document) {
  ConfigValue::Map present = document;
  if (is_on(find_value(document, "fp16")) && find_value(document, "mixed_precision") == nullptr)
    present.push_back({"mixed_precision", 0, text_value("fp16")});
  if (const ConfigValue* backend = find_value(document, "dynamo_backend")) {
    ConfigValue::Map dynamo;
    const ConfigValue word = as_word(*backend, "NO");
    if (word.text != "NO")
      dynamo.push_back({"dynamo_backend", 0, text_value(uppercase(word.text))});
    present.push_back({"dynamo_config", 0, {std::move(dynamo), "", 0}});
  }
  return present;
}

ConfigValue filled_field(const ConfigValue::Map& document, const Field& field) {
  const ConfigValue* const value = find_value(document, field.name);
  const ConfigKey* const key = find_config_key(field.name);
  if (value != nullptr)
    return key != nullptr && key->type == ConfigType::kChoice ? as_word(*value, key->choices)
                                                              : *value;
  if (field.name == "num_processes") {
    const ConfigValue* const type = find_value(document, "distributed_type");
    const bool is_single = type != nullptr && as_word(*type, "NO").text == "NO";
    return scalar_of(is_single ? "1" : field.fallback);
  }
  return field.fallback.empty() ? ConfigValue() : scalar_of(field.fallback);
}

bool is_for_sagemaker(const ConfigValue::Map& document) {
  const ConfigValue* const value = find_value(document, "compute_environment");
  return value != nullptr && value->text == "AMAZON_SAGEMAKER";
}

}  // namespace

const ConfigValue* find_value(const ConfigValue::Map& document, std::string_view key) {
  const auto found = std::find_if(
      document.rbegin(), document.rend(), [&](const ConfigEntry& e) { return e.key == key; });
  return found == document.rend() ? nullptr : &found->value;
}

ConfigValue::Map normal_form(const ConfigValue::Map& document) {
  const ConfigValue::Map present = with_present_keys(document);
  ConfigValue::Map normal;
  const auto add = [&](std::span<const Field> fields) {
    for (const Field& field : fields) {
      ConfigValue value = filled_field(present, field);
      if (!is_empty(value)) normal.push_back({std::string(field.name), 0, std::move(value)});
    }
  };
  add(kBase);
  is_for_sagemaker(document) ? add(kSagemaker) : add(kCluster);
  return normal;
}

ConfigValue::Map in_alphabetical_order(ConfigValue::Map document) {
  std::stable_sort(document.begin(),
                   document.end(),
                   [](const ConfigEntry& a, const ConfigEntry& b) { return a.key < b.key; });
  for (ConfigEntry& entry : document) {
    if (auto* map = std::get_if<ConfigValue::Map>(&entry.value.data))
      *map = in_alphabetical_order(std::move(*map));
  }
  return document;
}

ConfigValue::Map basic_config(std::string_view mixed_precision, int num_gpus) {
  const bool has_gpus = num_gpus > 0;
  return normal_form({
      {"distributed_type", 0, text_value(num_gpus > 1 ? "MULTI_GPU" : "NO")},
      {"mixed_precision", 0, text_value(mixed_precision)},
      {"num_processes", 0, scalar_of(std::to_string(has_gpus ? num_gpus : 1))},
      {"use_cpu", 0, scalar_of(has_gpus ? "false" : "true")},
  });
}

}  // namespace accel::launcher
