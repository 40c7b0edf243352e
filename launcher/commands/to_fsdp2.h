// `accel to-fsdp2`: writes a configuration of FSDP 1 as one of FSDP 2.
#pragma once

#include <string>
#include <vector>

namespace accel::launcher {

// The exit status. Arguments are what stands after the name of the command.
int to_fsdp2_command(const std::vector<std::string>& arguments);

}  // namespace accel::launcher
