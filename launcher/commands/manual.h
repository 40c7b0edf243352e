// Manual: the man pages, written from the flags of the programs.
//
// Threads:  pure functions.
#pragma once

#include <string>
#include <string_view>

#include "launcher/agent_commands/agent_commands.h"
#include "launcher/commands/local_commands.h"

namespace accel::launcher {

// troff (man(7)) for accel-launch(1).
[[nodiscard]] std::string launch_manual();

// For accel-torchrun(1): torchrun's flags and what differs from accel-launch(1), which has the others.
[[nodiscard]] std::string torchrun_manual();

// For accel-COMMAND(1), with its subcommands. Threads: see describe().
[[nodiscard]] std::string command_manual(const LocalCommand& command);
[[nodiscard]] std::string command_manual(const AgentCommand& command);

// For agent.yaml(5), from the commented file of configs/.
[[nodiscard]] std::string agent_file_manual(std::string_view text);

}  // namespace accel::launcher
