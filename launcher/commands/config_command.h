// ConfigCommand: `accel config` (the questionnaire), `accel config default` and `accel config update`.
#pragma once

#include <string>
#include <vector>

namespace accel::launcher {

// Returns the exit status.
[[nodiscard]] int config_command(const std::vector<std::string>& arguments);

}  // namespace accel::launcher
