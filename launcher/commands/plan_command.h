// `accel plan`: starts the program that tells what training an exported model takes (train/training_plan.h).
#pragma once

#include <string>
#include <vector>

namespace accel::launcher {

// Becomes that program; the exit status where it cannot. Arguments are what stands after the name of the command.
int plan_command(const std::vector<std::string>& arguments);

}  // namespace accel::launcher
