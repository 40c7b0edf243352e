// Manual: the man page and the shell completion of accel-launch, written from the flag table.
//
// Threads:  pure functions.
#pragma once

#include <string>

namespace accel::launcher {

// troff (man(7)) for accel-launch(1).
[[nodiscard]] std::string launch_manual();

// A script for bash-completion: flags, the choices of a flag, then files.
[[nodiscard]] std::string launch_completion();

}  // namespace accel::launcher
