#include "launcher/config/questionnaire/answered_config.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "launcher/config/config_normal_form.h"

namespace accel::launcher {
namespace {

constexpr std::string_view kNewRole = "accelerate_sagemaker_execution_role";

// Puts "section.key" into its map, which is made when it is not there.
void put_value(ConfigValue::Map& document, std::string_view key, ConfigValue value) {
  const std::size_t dot = key.find('.');
  const std::string_view name = key.substr(0, dot);
  auto entry = std::find_if(
      document.begin(), document.end(), [&](const ConfigEntry& e) { return e.key == name; });
  if (dot == std::string_view::npos) {
    if (entry == document.end()) {
      document.push_back({std::string(name), 0, std::move(value)});
    } else {
      entry->value = std::move(value);
    }
    return;
  }
  if (entry == document.end()) {
    document.push_back({std::string(name), 0, {ConfigValue::Map(), "", 0}});
    entry = document.end() - 1;
  }
  put_value(std::get<ConfigValue::Map>(entry->value.data), key.substr(dot + 1), std::move(value));
}

std::string expanded(const std::string& path, const PathContext& context) {
  const bool is_home = path == "~" || path.starts_with("~/");
  return is_home && !context.home.empty() ? context.home + path.substr(1) : path;
}

// What answers decide without being asked for.
void put_consequences(ConfigValue::Map& document,
                      const Answers& answers,
                      const PathContext& context) {
  if (answers.is_sagemaker()) {
    if (answers.text("?role") == "new") put_value(document, "iam_role_name", text_value(kNewRole));
    return;
  }
  put_value(document, "distributed_type", text_value(answers.distributed_type()));
  if (answers.text("?machine") == "MULTI_CPU") put_value(document, "use_cpu", bool_value(true));
  if (answers.distributed_type() == "XLA") put_value(document, "mixed_precision", text_value("no"));
  if (!answers.has("same_network")) put_value(document, "same_network", bool_value(true));
  if (!answers.has("tpu_env")) put_value(document, "tpu_env", {ConfigValue::List(), "", 0});
  put_value(document, "downcast_bf16", text_value("no"));
  const bool loads_on_rank_0 = answers.number("fsdp_config.fsdp_version", 0) == 1 &&
                               answers.is_on("fsdp_config.fsdp_cpu_ram_efficient_loading");
  if (loads_on_rank_0) put_value(document, "fsdp_config.fsdp_sync_module_states", bool_value(true));
  if (answers.has("?override_precision")) {
    ConfigValue::List passes;
    for (const char* pass : {"?override_fprop", "?override_dgrad", "?override_wgrad"})
      passes.push_back(bool_value(answers.is_on(pass)));
    put_value(document, "fp8_config.override_linear_precision", {std::move(passes), "", 0});
  }
  if (const std::string hosts = answers.text("mpirun_config.mpirun_hostfile"); !hosts.empty())
    put_value(document, "mpirun_config.mpirun_hostfile", text_value(expanded(hosts, context)));
  if (const std::string file = answers.text("command_file"); !file.empty()) {
    const auto path = std::filesystem::path(context.folder) / expanded(file, context);
    put_value(document, "command_file", text_value(path.lexically_normal().string()));
  }
}

}  // namespace

ConfigValue::Map answered_config(const Answers& answers, const PathContext& context) {
  ConfigValue::Map document;
  for (const auto& [key, value] : answers.values()) {
    if (!key.starts_with('?')) put_value(document, key, value);
  }
  put_consequences(document, answers, context);
  return in_alphabetical_order(normal_form(document));
}

std::vector<std::string> closing_notes(const Answers& answers) {
  std::vector<std::string> notes;
  const bool is_full = answers.text("mixed_precision") == "no" && !answers.is_on("use_cpu") &&
                       answers.text("?machine") != "MULTI_CPU";
  if (answers.is_on("?use_dynamo") && is_full)
    notes.emplace_back(
        "torch.compile without mixed precision needs TF32 to be fast: the workers turn it on");
  if (answers.text("?role") == "new") {
    const std::string role(kNewRole);
    notes.push_back("create the role with the aws CLI, unless it exists:");
    notes.push_back(
        "  aws iam create-role --role-name " + role +
        " --assume-role-policy-document '{\"Version\": \"2012-10-17\", \"Statement\": "
        "[{\"Effect\": "
        "\"Allow\", \"Principal\": {\"Service\": \"sagemaker.amazonaws.com\"}, \"Action\": "
        "\"sts:AssumeRole\"}]}'");
    notes.push_back("  aws iam attach-role-policy --role-name " + role +
                    " --policy-arn arn:aws:iam::aws:policy/AmazonSageMakerFullAccess");
  }
  return notes;
}

}  // namespace accel::launcher
