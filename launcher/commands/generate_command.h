// `accel generate`: starts the program that generates tokens with an exported model (train/generation/generation.h).
#pragma once

#include <string>
#include <vector>

namespace accel::launcher {

// Becomes that program; the exit status where it cannot. Arguments are what stands after the name of the command.
int generate_command(const std::vector<std::string>& arguments);

}  // namespace accel::launcher
