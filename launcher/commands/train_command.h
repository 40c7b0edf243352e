// `accel train`: launches the program that trains an exported model (train/main.cc).
#pragma once

#include <string>
#include <vector>

#include <accel/result.h>

namespace accel::launcher {

// The exit status. Arguments are what stands after the name of the command.
int train_command(const std::vector<std::string>& arguments);

// The words after accel-launch: those before the model, a name that ends with .pt2, are flags of the launcher, all behind it are
// the program's. Errors  kUsage: no word is a model. Pure.
[[nodiscard]] Result<std::vector<std::string>> train_launch(
    const std::vector<std::string>& arguments, const std::string& program);

}  // namespace accel::launcher
