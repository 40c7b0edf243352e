#include "launcher/start/sagemaker/training_container.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include <nlohmann/json.hpp>

#include "launcher/flags/flag_table.h"
#include "launcher/flags/torchrun_flags.h"
#include "launcher/start/machines/settings/machines_settings.h"
#include "runtime/environment_value.h"
#include "runtime/text/number_text.h"

namespace accel::launcher {
namespace {

Error invalid_job_variable(const std::string& name,
                           const std::string& text,
                           const std::string& expected) {
  return Error(ErrorCode::kEnvInvalid,
               name + " is '" + text + "', expected " + expected,
               "outside of SageMaker unset " + name + "; inside, let SageMaker alone set it");
}

// A list of names, at least one.
std::optional<std::vector<std::string>> host_names(const nlohmann::json& json) {
  if (!json.is_array() || json.empty()) return std::nullopt;
  std::vector<std::string> names;
  for (const nlohmann::json& name : json) {
    if (!name.is_string()) return std::nullopt;
    names.push_back(name.get<std::string>());
  }
  return names;
}

Result<TrainingContainer> place_among(std::vector<std::string> hosts,
                                      const std::string& current,
                                      const std::string& source) {
  TrainingContainer container;
  container.hosts = std::move(hosts);
  const auto found = std::ranges::find(container.hosts, current);
  if (found == container.hosts.end())
    return invalid_job_variable(source, current, "one of the job's hosts");
  container.index = static_cast<int>(found - container.hosts.begin());
  return container;
}

Result<TrainingContainer> read_variables(const EnvMap& environment) {
  const std::string list = value_in(environment, "SM_HOSTS");
  auto hosts = host_names(nlohmann::json::parse(list, nullptr, false));
  if (!hosts)
    return invalid_job_variable("SM_HOSTS", list, "a list of hosts as in [\"algo-1\", \"algo-2\"]");
  return place_among(
      *std::move(hosts), value_in(environment, "SM_CURRENT_HOST"), "SM_CURRENT_HOST");
}

Result<TrainingContainer> read_resource_config(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  auto hosts =
      json.is_object() && json.contains("hosts") ? host_names(json["hosts"]) : std::nullopt;
  const bool is_complete =
      hosts && json.contains("current_host") && json["current_host"].is_string();
  if (!is_complete)
    return invalid_job_variable(kResourceConfigPath, text, "a map with hosts and current_host");
  return place_among(*std::move(hosts),
                     json["current_host"].get<std::string>(),
                     std::string(kResourceConfigPath) + ": current_host");
}

// What flags say, or the PET_* variables that torchrun takes for them.
struct GivenFlags {
  const CommandLine& line;
  const EnvMap& environment;

  [[nodiscard]] bool says_any(std::initializer_list<std::string_view> flags) const {
    return std::ranges::any_of(flags, [&](std::string_view flag) {
      if (line.has(flag)) return true;
      const std::string value = value_in(environment, pet_variable(flag));
      // "0" is a switch that is off, or a number.
      return !value.empty() && (value != "0" || find_flag(flag)->kind != FlagKind::kSwitch);
    });
  }
  [[nodiscard]] bool says_machines() const {
    return says_any({"num_machines", "machine_rank", "main_process_ip", "agent"}) ||
           says_any({"nnodes", "node_rank", "master_addr", "standalone", "rdzv_endpoint"});
  }
};

}  // namespace

Result<std::optional<TrainingContainer>> read_training_container(
    const EnvMap& environment, const std::function<std::string()>& resource_config) {
  const bool has_variables = environment.contains("SM_HOSTS");
  const std::string text = has_variables ? "" : resource_config();
  if (!has_variables && text.empty()) return std::optional<TrainingContainer>();
  auto container = has_variables ? read_variables(environment) : read_resource_config(text);
  if (!container) return std::move(container).error();
  const std::string gpus = value_in(environment, "SM_NUM_GPUS");
  const auto num_gpus = number_of<int>(gpus);
  if (!gpus.empty() && !num_gpus)
    return invalid_job_variable("SM_NUM_GPUS", gpus, "a whole number");
  container->num_gpus = num_gpus.value_or(container->num_gpus);
  return std::optional(*std::move(container));
}

void join_training_job(CommandLine& line,
                       const ConfigFile* file,
                       const TrainingContainer& here,
                       const EnvMap& environment) {
  const GivenFlags given{line, environment};
  const int machines = static_cast<int>(here.hosts.size());
  if (machines == 1 || given.says_machines()) return;
  line.given["num_machines"] = std::to_string(machines);
  line.given["machine_rank"] = std::to_string(here.index);
  line.given["main_process_ip"] = here.hosts.front();
  const bool file_has_port = file != nullptr && file->main_process_port;
  if (!file_has_port && !given.says_any({"main_process_port", "master_port"}))
    line.given["main_process_port"] = std::to_string(kDefaultMainPort);
  // Beside a file, which has to say how many, PET_NPROC_PER_NODE does not count.
  const bool is_counted = file != nullptr ? file->num_processes || line.has("nproc_per_node")
                                          : given.says_any({"nproc_per_node"});
  if (is_counted || line.has("num_processes")) return;
  const int each = std::max(1, here.num_gpus);
  // As torchrun counts, the number is that of this machine.
  line.given["num_processes"] = std::to_string(line.is_torchrun ? each : machines * each);
}

}  // namespace accel::launcher
