// `accel merge-weights`: a checkpoint in parts as one model.safetensors.
#pragma once

#include <string>
#include <vector>

namespace accel::launcher {

// The exit status. Arguments are what stands after the name of the command.
int merge_weights_command(const std::vector<std::string>& arguments);

}  // namespace accel::launcher
