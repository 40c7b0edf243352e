// LocalCommands: the commands of `accel` that need neither an agent nor workers.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace accel::launcher {

struct LocalCommand {
  std::string_view name;
  std::string_view summary;
  int (*run)(const std::vector<std::string>& arguments);
};

[[nodiscard]] std::span<const LocalCommand> local_commands() noexcept;

// nullptr: there is none of that name.
[[nodiscard]] const LocalCommand* find_local_command(std::string_view name) noexcept;

}  // namespace accel::launcher
