#include "launcher/commands/completion/completed_command.h"

#include <algorithm>

#include "launcher/agent_commands/agent_commands.h"
#include "launcher/commands/local_commands.h"
#include "launcher/flags/flag_table.h"
#include "launcher/text/choice_list.h"

namespace accel::launcher {
namespace {

std::string one_line(std::string_view text) {
  std::string line(text);
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

std::vector<std::string> words_of(std::string_view list) {
  std::vector<std::string> words;
  for (const std::string_view word : split_choices(list)) words.emplace_back(word);
  return words;
}

CompletedCommand launch() {
  CompletedCommand command = {.name = "launch",
                              .summary = "start workers on this machine (accel-launch)",
                              .flags = {},
                              .subcommands = {}};
  for (const FlagSpec& flag : flag_table()) {
    std::vector<std::string> choices = words_of(flag.choices);
    if (flag.kind == FlagKind::kBool) choices = {"true", "false"};
    command.flags.push_back({"--" + std::string(flag.name),
                             std::string(flag.value_name),
                             one_line(flag.help),
                             std::move(choices),
                             flag.short_name == 0 ? "" : std::string("-") + flag.short_name});
  }
  command.ends_at_script = command.takes_hyphens = true;
  command.programs = {"accel-launch", "accel-torchrun"};
  return command;
}

// Its flags, each once.
void add_flags(CompletedCommand& completed, const CommandDescription& description) {
  for (const CommandOption& option : description.options) {
    const bool is_there =
        std::any_of(completed.flags.begin(), completed.flags.end(), [&](const CompletedFlag& flag) {
          return flag.name == option.name;
        });
    if (option.is_flag() && !is_there)
      completed.flags.push_back({option.name, option.value, one_line(option.help), option.choices});
  }
}

// With the flags of its subcommands.
CompletedCommand local(const LocalCommand& command) {
  CompletedCommand completed = {
      std::string(command.name), std::string(command.summary), {}, words_of(command.subcommands)};
  completed.takes_hyphens = true;
  completed.programs = {"accel-" + completed.name};
  for (const CommandDescription& description : describe(command)) {
    add_flags(completed, description);
    // What stands for itself and is one of some words, as a shell.
    for (const CommandOption& option : description.options) {
      if (!option.is_flag())
        completed.subcommands.insert(
            completed.subcommands.end(), option.choices.begin(), option.choices.end());
    }
  }
  return completed;
}

CompletedCommand of_agent(const AgentCommand& command) {
  CompletedCommand completed = {std::string(command.name), std::string(command.summary), {}, {}};
  add_flags(completed, describe(command));
  completed.ends_at_script = command.ends_at_program;
  return completed;
}

}  // namespace

bool CompletedFlag::takes_file() const {
  return value == "FILE" || value == "PATH" || value == "DIR" || value == "FOLDER";
}

std::vector<std::string> CompletedCommand::value_patterns() const {
  std::vector<std::string> patterns;
  for (const CompletedFlag& flag : flags) {
    if (flag.value.empty()) continue;
    patterns.push_back(flag.name);
    if (!flag.short_name.empty()) patterns.push_back(flag.short_name);
  }
  for (std::string& pattern : patterns) std::replace(pattern.begin(), pattern.end(), '-', '_');
  return patterns;
}

std::vector<CompletedCommand> completed_commands() {
  std::vector<CompletedCommand> commands = {launch()};
  for (const LocalCommand& command : local_commands()) commands.push_back(local(command));
  for (const AgentCommand& command : agent_commands()) commands.push_back(of_agent(command));
  return commands;
}

std::vector<std::string> completed_programs() {
  std::vector<std::string> programs;
  for (const CompletedCommand& command : completed_commands())
    programs.insert(programs.end(), command.programs.begin(), command.programs.end());
  return programs;
}

}  // namespace accel::launcher
