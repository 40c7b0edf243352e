// LaunchHelp: what `accel-launch --help` and `accel-torchrun --help` print, made from the table of flags.
#pragma once

#include <functional>
#include <map>
#include <string>

namespace accel::launcher {

// Names of flags, with what was given as their values.
using GivenFlags = std::map<std::string, std::string, std::less<>>;

// Grouped, at most 80 columns, only the underscore forms. With flags beside --help, groups of paradigms that none of them
// belongs to or asks for ("fp8 (with --mixed_precision fp8)") are left out. For accel-torchrun with its name and defaults.
[[nodiscard]] std::string launch_help(const GivenFlags& given = {}, bool is_torchrun = false);

}  // namespace accel::launcher
