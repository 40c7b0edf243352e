// LaunchHelp: what `accel-launch --help` and `accel-torchrun --help` print, made from the table of flags.
#pragma once

#include <string>
#include <vector>

namespace accel::launcher {

// Grouped, at most 80 columns, only the underscore forms. With `chosen`, names of the flags beside --help, groups of
// paradigms that none of them belongs to are left out. For accel-torchrun with its name and defaults.
[[nodiscard]] std::string launch_help(const std::vector<std::string>& chosen = {},
                                      bool is_torchrun = false);

}  // namespace accel::launcher
