// cmd_launch: the command `accel-launch`.
#pragma once

#include <string>
#include <vector>

namespace accel::launcher {

// `arguments` is argv without the program's name; `is_torchrun` gives them the defaults of torchrun. Returns the exit status: the worker's, 128 +
// signal, or that of the error.
int cmd_launch(const std::vector<std::string>& arguments, bool is_torchrun = false);

}  // namespace accel::launcher
