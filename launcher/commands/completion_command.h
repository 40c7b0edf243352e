// CompletionCommand: `accel completion`, the script with which a shell completes the commands of accel.
#pragma once

#include <string>
#include <vector>

namespace accel::launcher {

// Returns the exit status.
[[nodiscard]] int completion_command(const std::vector<std::string>& arguments);

}  // namespace accel::launcher
