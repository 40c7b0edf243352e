// accel: all commands in one program. `accel launch` is accel-launch; the others need neither workers nor an agent, or speak
// to an agent. Called by the name accel-COMMAND, it is that command.

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/agent_commands/agent_commands.h"
#include "launcher/cluster_entry/cluster_library.h"
#include "launcher/commands/local_commands.h"
#include "launcher/launch/cmd_launch.h"
#include "launcher/launch/program_end.h"
#include "launcher/system/missing_stdio.h"
#include "runtime/printable.h"
#include "runtime/suggest.h"

namespace {

constexpr std::string_view kNamePrefix = "accel-";

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
  for (const auto& command : accel::launcher::agent_commands())
    print(command.name, command.summary);
  std::printf("\n`accel COMMAND --help` says more. docs/admin/agent.md explains agents.\n");
}

// nullptr: none has this name.
const accel::launcher::AgentCommand* find_agent_command(std::string_view word) {
  const auto commands = accel::launcher::agent_commands();
  const auto found = std::ranges::find(commands, word, &accel::launcher::AgentCommand::name);
  return found == commands.end() ? nullptr : &*found;
}

accel::Error unknown_command(const std::string& word) {
  std::vector<std::string> known = {"launch"};
  for (const auto& command : accel::launcher::local_commands()) known.emplace_back(command.name);
  for (const auto& command : accel::launcher::agent_commands()) known.emplace_back(command.name);
  const auto meant = accel::nearest(word, known);
  return accel::Error(accel::ErrorCode::kUsage,
                      "there is no command '" + accel::printable(word) + "'",
                      meant ? "did you mean `accel " + *meant + "`?" : "see `accel --help`");
}

int fail(const accel::Error& error) {
  std::fprintf(stderr, "%s\n", error.render("accel").c_str());
  return accel::error_info(error.code()).exit_status;
}

int run_command(const std::vector<std::string>& arguments) {
  if (!arguments.empty()) {
    const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
    if (arguments.front() == "launch") return accel::launcher::cmd_launch(rest);
    if (const auto* command = accel::launcher::find_local_command(arguments.front()))
      return command->run(rest);
  }
  const std::string first = arguments.empty() ? "" : arguments.front();
  if (arguments.empty() || first == "--help" || first == "-h" || first == "help") {
    print_help();
    return arguments.empty() ? 1 : 0;  // as Accelerate's
  }
  if (first == "--version" || first == "-V" || first == "version")
    return accel::launcher::cmd_launch({"--version"});
  const auto* command = find_agent_command(first);
  if (command == nullptr) return fail(unknown_command(first));
  if (arguments.size() == 2 && (arguments[1] == "--help" || arguments[1] == "-h")) {
    std::fputs(help_text(describe(*command)).c_str(), stdout);  // also where there is no library
    return 0;
  }
  const auto status = accel::launcher::run_cluster_command(arguments);
  return status ? *status : fail(status.error());
}

}  // namespace

int main(int argc, char** argv) {
  accel::launcher::open_missing_stdio();
  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (const auto command = command_of(argc > 0 ? argv[0] : ""); !command.empty())
    arguments.emplace(arguments.begin(), command);
  return accel::launcher::status_of_program("accel", [&] { return run_command(arguments); });
}
