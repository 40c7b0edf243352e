// `accel test`: launches the self test as a training would be launched, and says whether this set-up can train.
#pragma once

#include <string>
#include <vector>

namespace accel::launcher {

// The exit status. Arguments are what stands after the name of the command.
int test_command(const std::vector<std::string>& arguments);

// The words after accel-launch that start it; an empty `config_file` is the default one.
[[nodiscard]] std::vector<std::string> self_test_launch(const std::string& config_file,
                                                        bool is_strict,
                                                        const std::string& self_test);

}  // namespace accel::launcher
