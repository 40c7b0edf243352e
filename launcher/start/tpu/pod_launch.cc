#include "launcher/start/tpu/pod_launch.h"

#include <filesystem>
#include <utility>

namespace accel::launcher {
namespace {

// As it has to stand between double quotes of a shell.
std::string between_quotes(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '"' || c == '$' || c == '`' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

// What each machine runs.
std::vector<std::string> machine_words(const PodScript& script,
                                       const TpuSettings& settings,
                                       const PodLauncher& here) {
  std::vector<std::string> words;
  if (settings.pod->use_sudo) words.emplace_back("sudo");
  words.insert(words.end(), {here.launcher, "--tpu", "--no_tpu_cluster", "--num_machines", "1"});
  words.insert(words.end(), {"--mixed_precision", here.mixed_precision, "--dynamo_backend", "no"});
  if (settings.downcast_bf16) words.emplace_back("--downcast_bf16");
  if (settings.pod->num_processes)
    words.insert(words.end(), {"--num_processes", std::to_string(*settings.pod->num_processes)});
  words.insert(words.end(), {"--main_training_function", settings.function});
  if (script.kind == ScriptKind::kModule) words.emplace_back("--module");
  words.push_back(script.name);
  // One that is the script's own, where the launcher there drops the first.
  if (!script.arguments.empty() && script.arguments.front() == "--") words.emplace_back("--");
  words.insert(words.end(), script.arguments.begin(), script.arguments.end());
  return words;
}

}  // namespace

Result<WorkerCommand> pod_command(const PodScript& script,
                                  const TpuSettings& settings,
                                  const PodLauncher& here) {
  if (script.kind == ScriptKind::kProgram || script.kind == ScriptKind::kRunPath) {
    return Error(ErrorCode::kUsage,
                 "--tpu starts a function of a Python script or module",
                 "give a .py file with the function `" + settings.function +
                     "`, without --no_python and --run_path");
  }
  const TpuPod& pod = *settings.pod;
  WorkerCommand command;
  command.is_python = true;
  command.name = std::filesystem::path(script.name).stem().string();
  command.argv = {here.python, "-u", "-m", "torch_xla.distributed.xla_dist", "--tpu", pod.name};
  const auto add = [&](const char* flag, const std::string& value) {
    command.argv.insert(command.argv.end(), {flag, value});
  };
  for (const std::string& machine : pod.machines) add("--vm", machine);
  for (const auto& [name, value] : tpu_variables(settings, here.mixed_precision))
    add("--env", name + "=" + value);
  if (here.debug) add("--env", "ACCELERATE_DEBUG_MODE=true");
  add("--env", "ACCELERATE_IN_TPU_POD=1");
  for (const std::string& variable : pod.variables) add("--env", between_quotes(variable));
  command.argv.insert(command.argv.end(), {"--restart-tpuvm-pod-server", "--"});
  for (const std::string& word : machine_words(script, settings, here))
    command.argv.push_back(between_quotes(word));
  return command;
}

}  // namespace accel::launcher
