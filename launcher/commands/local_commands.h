// LocalCommands: the commands of `accel` that need neither an agent nor workers.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/flags/command_description.h"

namespace accel::launcher {

struct LocalCommand {
  std::string_view name;
  std::string_view summary;
  int (*run)(const std::vector<std::string>& arguments);
  std::string_view subcommands = {};  // words that may stand first, separated by commas
};

[[nodiscard]] std::span<const LocalCommand> local_commands() noexcept;

// nullptr: there is none of that name.
[[nodiscard]] const LocalCommand* find_local_command(std::string_view name) noexcept;

// The command, then each of its subcommands. One thread at a time.
[[nodiscard]] std::vector<CommandDescription> describe(const LocalCommand& command);

}  // namespace accel::launcher
