#include "launcher/start/ssh/host_spec.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <utility>

#include "launcher/flags/flag_table.h"
#include "launcher/start/ssh/listed_variables.h"
#include "runtime/supervisor/spawn/spawner.h"
#include "runtime/text/joined.h"

namespace accel::launcher {
namespace {

namespace fs = std::filesystem;
using supervisor::JobSpec;

// What the hosts' launchers need beside the workers' grace to say how it ended.
constexpr supervisor::Milliseconds kReportTime{10'000};

Result<void> check_transport(HostTransport transport, const EnvMap& environment) {
  const std::string name = transport == HostTransport::kPdsh ? "pdsh" : "ssh";
  const auto path = environment.find("PATH");
  const bool has_path = path != environment.end() && !path->second.empty();
  if (supervisor::find_program(name, has_path ? path->second : "/usr/bin:/bin")) return {};
  return Error(ErrorCode::kExecFailed,
               name + " is not installed",
               transport == HostTransport::kPdsh
                   ? "install it (`apt install pdsh`), or give --deepspeed_multinode_launcher ssh"
                   : "install it (`apt install openssh-client`)");
}

// A process each, which starts the workers of its host and stops with its input.
void become_starters(JobSpec& spec, const HostSettings& settings, const HostCommand& command) {
  spec.workers.clear();
  for (std::size_t machine = 0; machine < settings.hosts.size(); ++machine) {
    supervisor::WorkerSpec starter;
    starter.local_rank = starter.global_rank = static_cast<int>(machine);
    starter.is_starter = true;
    starter.argv = transport_words(settings.transport,
                                   settings.hosts[machine].name,
                                   host_command_text(settings, command, machine));
    spec.workers.push_back(std::move(starter));
  }
  spec.env_mode = EnvMode::kSimple;
  spec.store.enabled = false;
  spec.log = {};
  spec.hang = {};
  spec.restart = {.max_restarts = 0, .max_out_of_memory = 0};
  spec.preflight.clear();
  // pdsh hands no input on, but the end of it is what hosts see of its own.
  const bool has_input = settings.transport == HostTransport::kSsh;
  spec.console = {.use_pty = false,
                  .stdin_to_rank0 = false,
                  .stop_by_input = has_input,
                  .held_input = to_stdin_text(command.secrets)};
  spec.stop.grace += kReportTime;
}

// Out of the command line, which every user of both machines can read.
Result<void> keep_secrets(HostCommand& command,
                          const HostSettings& settings,
                          std::vector<std::string>& notices) {
  const auto secrets = std::stable_partition(
      command.variables.begin(), command.variables.end(), [](const auto& variable) {
        return !is_secret(variable.first);
      });
  if (secrets == command.variables.end()) return {};
  if (settings.transport == HostTransport::kSsh) {
    command.secrets.assign(secrets, command.variables.end());
    command.variables.erase(secrets, command.variables.end());
    const std::size_t num_bytes = to_stdin_text(command.secrets).size();
    if (num_bytes <= kMostStdinBytes) return {};
    return Error(ErrorCode::kInvalidArgument,
                 "the secrets for the hosts (" + command.secrets.front().first + ", ...) have " +
                     std::to_string(num_bytes) + " bytes; ssh's input takes " +
                     std::to_string(kMostStdinBytes),
                 "put them into files that the hosts have");
  }
  std::vector<std::string> names;
  std::transform(secrets, command.variables.end(), std::back_inserter(names), [](const auto& each) {
    return each.first;
  });
  notices.push_back("pdsh hands no input on, so " + joined(names, ", ") +
                    " can be read in the command lines on all hosts; give "
                    "--deepspeed_multinode_launcher ssh, which sends such variables unseen");
  return {};
}

}  // namespace

std::vector<std::string> flags_for_hosts(const CommandLine& line) {
  constexpr std::string_view kGroups[] = {"Output", "Failures and stopping"};
  constexpr std::string_view kNames[] = {"enable_cpu_affinity",
                                         "local_ranks_filter",
                                         "module",
                                         "no_python",
                                         "num_cpu_threads_per_process",
                                         "numa_binding",
                                         "quiet",
                                         "role",
                                         "run_path",
                                         "signals_to_handle",
                                         "strict_compat"};
  std::vector<std::string> flags;
  for (const FlagSpec& flag : flag_table()) {
    const bool is_meant =
        std::ranges::count(kGroups, flag.group) > 0 || std::ranges::count(kNames, flag.name) > 0;
    if (!is_meant || flag.name == "stop_with_stdin" || !line.has(flag.name)) continue;
    const std::string name = "--" + std::string(flag.name);
    if (flag.kind == FlagKind::kSwitch) {
      if (line.is_on(flag.name)) flags.push_back(name);
      continue;
    }
    const auto all = line.repeated.find(flag.name);
    const std::vector<std::string> last = {*line.text(flag.name)};
    const bool is_list = flag.name == "preflight" && all != line.repeated.end();
    for (const std::string& value : is_list ? all->second : last)
      flags.insert(flags.end(), {name, value});
  }
  return flags;
}

Result<void> hand_to_hosts(JobSpec& spec,
                           const HostSettings& settings,
                           const CommandLine& line,
                           const LaunchHost& host,
                           std::vector<std::string>& notices) {
  if (auto there = check_transport(settings.transport, host.environment); !there)
    return std::move(there).error();
  const auto listed = read_listed_variables(host.environment);
  if (!listed) return listed.error();
  HostCommand command;
  std::error_code failure;
  command.folder = fs::current_path(failure).string();
  if (failure) {
    return Error(ErrorCode::kFileIo,
                 "the working folder is gone, and the hosts shall run in it",
                 "change to a folder that all hosts have");
  }
  command.program = host.program_folder + "/accel-torchrun";
  command.variables = exported_variables(spec.env, host.environment, *listed);
  if (auto kept = keep_secrets(command, settings, notices); !kept) return kept;
  command.flags = flags_for_hosts(line);
  command.script = {line.script};
  // One that is the script's own, where the launcher there drops the first.
  const bool has_own_dashes =
      !line.script_arguments.empty() && line.script_arguments.front() == "--";
  if (has_own_dashes && !line.is_on("strict_compat")) command.script.emplace_back("--");
  command.script.insert(
      command.script.end(), line.script_arguments.begin(), line.script_arguments.end());
  become_starters(spec, settings, command);
  spec.env = host.environment;
  return {};
}

}  // namespace accel::launcher
