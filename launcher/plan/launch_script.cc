#include "launcher/plan/launch_script.h"

#include "launcher/start/tpu/pod_launch.h"

namespace accel::launcher {
namespace {

ScriptKind kind_of_script(const CommandLine& line) {
  return line.is_on("module")      ? ScriptKind::kModule
         : line.is_on("no_python") ? ScriptKind::kProgram
         : line.is_on("run_path")  ? ScriptKind::kRunPath
                                   : ScriptKind::kFile;
}

}  // namespace

Result<WorkerCommand> find_command(const CommandLine& line, const EnvMap& environment) {
  if (line.is_on("run_path") && (line.is_on("module") || line.is_on("no_python"))) {
    return Error(
        ErrorCode::kUsage,
        line.spelled("run_path") + " cannot be used with --module or " + line.spelled("no_python"),
        "leave one of them out");
  }
  if (line.is_on("module") && line.is_on("no_python")) {
    return Error(ErrorCode::kUsage,
                 "--module and " + line.spelled("no_python") + " cannot be used together",
                 "leave one of them out");
  }
  return resolve_command(
      line.script, line.script_arguments, kind_of_script(line), environment, line.program());
}

Result<WorkerCommand> find_tpu_command(const CommandLine& line,
                                       const LaunchSettings& settings,
                                       const LaunchHost& host) {
  const TpuSettings& tpu = *settings.tpu;
  if (!tpu.pod) {
    const Result<WorkerCommand> command = find_command(line, host.environment);
    return command ? tpu_command(*command, tpu) : command;
  }
  if (line.script.empty()) return find_command(line, host.environment);
  const Result<std::string> python = find_python(host.environment);
  if (!python) return python.error();
  return pod_command(
      {.name = line.script, .arguments = line.script_arguments, .kind = kind_of_script(line)},
      tpu,
      {.python = *python,
       .launcher = host.program_folder + "/accel-launch",
       .mixed_precision = settings.mixed_precision,
       .debug = settings.debug});
}

}  // namespace accel::launcher
