// LaunchHelp: what `accel-launch --help` prints, made from the table of flags.
#pragma once

#include <string>
#include <vector>

namespace accel::launcher {

// Grouped, at most 80 columns, only the underscore forms. With `chosen`, names of the flags beside --help, groups of
// paradigms that none of them belongs to are left out.
[[nodiscard]] std::string launch_help(const std::vector<std::string>& chosen = {});

}  // namespace accel::launcher
