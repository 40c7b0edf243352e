// accel: all commands in one program. `accel launch` is accel-launch; the others need neither workers nor an agent, or speak
// to an agent. Called by the name accel-COMMAND, it is that command.

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/cluster_library.h"
#include "launcher/cmd_launch.h"
#include "launcher/commands/local_commands.h"
#include "runtime/printable.h"
#include "runtime/suggest.h"

namespace {

constexpr std::string_view kNamePrefix = "accel-";

constexpr std::pair<std::string_view, std::string_view> kAgentCommands[] = {
    {"run", "submit a job to the agent of this machine and follow it"},
    {"status", "the jobs of an agent, or one job"},
    {"logs", "what the workers of a job wrote"},
    {"stop", "stop a job"},
    {"signal", "send a signal to the workers of a job"},
    {"scale", "change how many nodes a job has"},
    {"diagnose", "where the workers of a job stand"},
    {"ledger", "where the time of a job went"},
    {"watch", "each change of a job, or of all"},
    {"drain", "let the node start no more jobs"},
    {"undrain", "let it start jobs again"},
};

// "launch" of "/usr/bin/accel-launch", nothing of "accel".
std::string_view command_of(std::string_view program) {
  program.remove_prefix(program.rfind('/') + 1);
  return program.starts_with(kNamePrefix) ? program.substr(kNamePrefix.size()) : "";
}

void print_help() {
  std::printf("Usage: accel COMMAND [argument ...]\n\n");
  const auto print = [](std::string_view name, std::string_view summary) {
    std::printf("  %-16s %s\n", std::string(name).c_str(), std::string(summary).c_str());
  };
  print("launch", "start workers on this machine (accel-launch)");
  for (const auto& command : accel::launcher::local_commands())
    print(command.name, command.summary);
  std::printf("\nWith an agent:\n\n");
  for (const auto& [name, summary] : kAgentCommands) print(name, summary);
  std::printf("\n`accel COMMAND --help` says more. docs/agent.md explains agents.\n");
}

bool is_agent_command(std::string_view word) {
  return std::any_of(std::begin(kAgentCommands),
                     std::end(kAgentCommands),
                     [&](const auto& command) { return command.first == word; });
}

accel::Error unknown_command(const std::string& word) {
  std::vector<std::string> known = {"launch"};
  for (const auto& command : accel::launcher::local_commands()) known.emplace_back(command.name);
  for (const auto& command : kAgentCommands) known.emplace_back(command.first);
  const auto meant = accel::nearest(word, known);
  return accel::Error(accel::ErrorCode::kUsage,
                      "there is no command '" + accel::printable(word) + "'",
                      meant ? "did you mean `accel " + *meant + "`?" : "see `accel --help`");
}

int fail(const accel::Error& error) {
  std::fprintf(stderr, "%s\n", error.render("accel").c_str());
  return accel::error_info(error.code()).exit_status;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (const auto command = command_of(argc > 0 ? argv[0] : ""); !command.empty())
    arguments.emplace(arguments.begin(), command);
  if (!arguments.empty()) {
    const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
    if (arguments.front() == "launch") return accel::launcher::cmd_launch(rest);
    if (const auto* command = accel::launcher::find_local_command(arguments.front()))
      return command->run(rest);
  }
  if (arguments.empty() || arguments.front() == "--help" || arguments.front() == "-h") {
    print_help();
    return arguments.empty() ? 2 : 0;
  }
  const std::string& first = arguments.front();
  if (!first.starts_with('-') && !is_agent_command(first)) return fail(unknown_command(first));
  const auto status = accel::launcher::run_cluster_command(arguments);
  return status ? *status : fail(status.error());
}
