// `accel test`: launches the self test as a training would be launched, and says whether this set-up can train.
#pragma once

#include <string>
#include <vector>

namespace accel::launcher {

// The exit status. Arguments are what stands after the name of the command.
int test_command(const std::vector<std::string>& arguments);

// Where accel-selftest may be, in the order of the search: beside the program, then in the libexec folder of its prefix.
[[nodiscard]] std::vector<std::string> self_test_places(const std::string& program);

}  // namespace accel::launcher
