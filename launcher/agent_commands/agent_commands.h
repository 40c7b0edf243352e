// AgentCommands: the commands of `accel` that speak to an agent, with their flags: for their parser, their help, their man pages and
// the completions of shells. The library that speaks gRPC (cluster/agents/commands.cc) runs them.
//
// Threads:  constant data and pure functions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "launcher/agent_commands/agent_flags.h"
#include "launcher/flags/command_description.h"

namespace CLI {
class App;
}

namespace accel::launcher {

struct AgentCommand {
  std::string_view name;
  std::string_view summary;
  void (*add_flags)(CLI::App& command, AgentFlags& flags);  // of its own
  bool ends_at_program = false;  // what follows its first word that is no flag belongs to that word
};

[[nodiscard]] std::span<const AgentCommand> agent_commands() noexcept;

// Adds all of them as subcommands; `flags` has what was given when the parser has run, and must live as long.
void add_agent_commands(CLI::App& app, AgentFlags& flags);

// Its help, as local commands describe themselves.
[[nodiscard]] CommandDescription describe(const AgentCommand& command);

// Seconds of --hang_timeout above 0; std::nullopt for anything else.
[[nodiscard]] std::optional<double> hang_seconds(const std::string& text);

// Why --hang_timeout cannot be this; empty: it can.
[[nodiscard]] std::string objection_to_hang_timeout(const std::string& text);

// Why a flag cannot be so many seconds: fewer than `least`, more than a day, or no number; empty: it can.
[[nodiscard]] std::string objection_to_seconds(const std::string& text, double least);

}  // namespace accel::launcher
