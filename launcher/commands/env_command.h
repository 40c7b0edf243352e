// EnvCommand: `accel env`, what is installed on this machine, for a bug report.
#pragma once

#include <string>
#include <vector>

namespace accel::launcher {

// Returns the exit status.
[[nodiscard]] int env_command(const std::vector<std::string>& arguments);

}  // namespace accel::launcher
