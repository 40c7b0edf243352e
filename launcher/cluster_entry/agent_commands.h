// AgentCommands: the commands of `accel` that speak to an agent, for help and completions. The library
// that speaks gRPC (cluster/commands.cc) parses and runs them.
//
// Threads:  constant data.
#pragma once

#include <span>
#include <string_view>

namespace accel::launcher {

struct AgentCommand {
  std::string_view name;
  std::string_view summary;
  std::string_view flags;  // of its own, separated by commas; those with a value end with '='
};

[[nodiscard]] std::span<const AgentCommand> agent_commands() noexcept;

// Every one of them has these.
inline constexpr std::string_view kAgentFlags = "--agent=,--tls-dir=,--insecure,--json,--wait=";

}  // namespace accel::launcher
