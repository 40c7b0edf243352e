#include "launcher/sagemaker/training_container.h"

#include <algorithm>
#include <charconv>

#include <nlohmann/json.hpp>

namespace accel::launcher {
namespace {

using Json = nlohmann::json;

std::string variable(const EnvMap& environment, const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

Error invalid(const std::string& name, const std::string& text, const std::string& expected) {
  return Error(ErrorCode::kEnvInvalid,
               name + " is '" + text + "', expected " + expected,
               "outside of SageMaker unset " + name + "; inside, let SageMaker alone set it");
}

// A list of names, at least one.
std::optional<std::vector<std::string>> names_in(const Json& json) {
  if (!json.is_array() || json.empty()) return std::nullopt;
  std::vector<std::string> names;
  for (const Json& name : json) {
    if (!name.is_string()) return std::nullopt;
    names.push_back(name.get<std::string>());
  }
  return names;
}

Result<TrainingContainer> place(std::vector<std::string> hosts,
                                const std::string& current,
                                const std::string& source) {
  TrainingContainer container;
  container.hosts = std::move(hosts);
  const auto found = std::ranges::find(container.hosts, current);
  if (found == container.hosts.end()) return invalid(source, current, "one of the job's hosts");
  container.index = static_cast<int>(found - container.hosts.begin());
  return container;
}

Result<TrainingContainer> read_variables(const EnvMap& environment) {
  const std::string list = variable(environment, "SM_HOSTS");
  auto hosts = names_in(Json::parse(list, nullptr, false));
  if (!hosts) return invalid("SM_HOSTS", list, "a list of hosts as in [\"algo-1\", \"algo-2\"]");
  return place(*std::move(hosts), variable(environment, "SM_CURRENT_HOST"), "SM_CURRENT_HOST");
}

Result<TrainingContainer> read_file(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  auto hosts = json.is_object() && json.contains("hosts") ? names_in(json["hosts"]) : std::nullopt;
  const bool is_complete =
      hosts && json.contains("current_host") && json["current_host"].is_string();
  if (!is_complete) return invalid(kResourceConfigPath, text, "a map with hosts and current_host");
  return place(*std::move(hosts),
               json["current_host"].get<std::string>(),
               std::string(kResourceConfigPath) + ": current_host");
}

}  // namespace

Result<std::optional<TrainingContainer>> read_training_container(
    const EnvMap& environment, const std::function<std::string()>& resource_config) {
  const bool has_variables = environment.contains("SM_HOSTS");
  const std::string text = has_variables ? "" : resource_config();
  if (!has_variables && text.empty()) return std::optional<TrainingContainer>();
  auto container = has_variables ? read_variables(environment) : read_file(text);
  if (!container) return std::move(container).error();
  const std::string gpus = variable(environment, "SM_NUM_GPUS");
  const auto [end, failure] =
      std::from_chars(gpus.data(), gpus.data() + gpus.size(), container->num_gpus);
  if (!gpus.empty() && (failure != std::errc() || end != gpus.data() + gpus.size()))
    return invalid("SM_NUM_GPUS", gpus, "a whole number");
  return std::optional(*std::move(container));
}

void join_training_job(CommandLine& line, const ConfigFile* file, const TrainingContainer& here) {
  const int machines = static_cast<int>(here.hosts.size());
  const bool is_said = line.has("num_machines") || line.has("machine_rank") || line.has("nnodes") ||
                       line.has("agent") || line.has("main_process_ip");
  if (machines == 1 || is_said) return;
  line.given["num_machines"] = std::to_string(machines);
  line.given["machine_rank"] = std::to_string(here.index);
  line.given["main_process_ip"] = here.hosts.front();
  const bool has_port =
      line.has("main_process_port") || (file != nullptr && file->main_process_port);
  if (!has_port) line.given["main_process_port"] = "29500";
  const bool has_number = line.has("num_processes") || (file != nullptr && file->num_processes);
  if (!has_number) {
    const int each = std::max(1, here.num_gpus);
    line.given["num_processes"] = std::to_string(machines * each);
  }
}

}  // namespace accel::launcher
