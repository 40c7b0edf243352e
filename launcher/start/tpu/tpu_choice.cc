#include "launcher/start/tpu/tpu_choice.h"

#include <limits>
#include <utility>

namespace accel::launcher {
namespace {

void append_repeated(std::vector<std::string>& list,
                     const CommandLine& line,
                     std::string_view flag) {
  const auto given = line.repeated.find(flag);
  if (given == line.repeated.end()) return;
  list.insert(list.end(), given->second.begin(), given->second.end());
}

TpuPod choose_pod(const CommandLine& line, const ConfigFile* file, Faults& faults) {
  TpuPod pod;
  if (file != nullptr) {
    pod.name = file->tpu_name.value_or("");
    pod.machines = file->tpu_vm;
    pod.variables = file->tpu_env;
    pod.use_sudo = file->tpu_use_sudo.value_or(false);
    pod.num_processes = file->num_processes;
  }
  pod.name = line.text("tpu_name").value_or(pod.name);
  append_repeated(pod.machines, line, "vm");
  append_repeated(pod.variables, line, "env");
  pod.use_sudo = pod.use_sudo || line.is_on("tpu_use_sudo");
  if (line.has("num_processes")) {
    constexpr int kMost = std::numeric_limits<int>::max();
    pod.num_processes = integer_flag(line, "num_processes", 1, kMost, faults);
  }
  if (pod.name.empty()) {
    faults.add(Error(ErrorCode::kUsage,
                     "--tpu_cluster needs the name of the pod",
                     "give --tpu_name, or tpu_name in the configuration file"));
  }
  for (const std::string& variable : pod.variables) {
    const size_t equals = variable.find('=');
    if (equals != std::string::npos && equals > 0) continue;
    faults.add(Error(ErrorCode::kInvalidArgument,
                     "--env is '" + variable + "', expected NAME=VALUE",
                     "write --env NAME=VALUE, or - NAME=VALUE below tpu_env"));
  }
  return pod;
}

}  // namespace

std::optional<TpuSettings> choose_tpu(const CommandLine& line,
                                      const ConfigFile* file,
                                      bool has_other,
                                      Faults& faults) {
  const bool is_of_file = file != nullptr && file->distributed_type == "XLA" && !has_other;
  if (!line.is_on("tpu") && !is_of_file) return std::nullopt;
  TpuSettings tpu;
  const std::string function = file != nullptr ? file->main_training_function.value_or("") : "";
  tpu.function = line.text("main_training_function").value_or(function);
  if (tpu.function.empty()) tpu.function = TpuSettings().function;
  tpu.downcast_bf16 = line.has("downcast_bf16")
                          ? line.is_on("downcast_bf16")
                          : file != nullptr && file->downcast_bf16.value_or(false);
  const bool is_pod =
      line.is_on("tpu_cluster") || (is_of_file && file->tpu_use_cluster.value_or(false));
  if (is_pod && !line.is_on("no_tpu_cluster")) tpu.pod = choose_pod(line, file, faults);
  return tpu;
}

}  // namespace accel::launcher
