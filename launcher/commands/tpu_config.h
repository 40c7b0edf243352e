// `accel tpu-config`: runs commands on all workers of a TPU pod, through gcloud.
#pragma once

#include <string>
#include <vector>

namespace accel::launcher {

// The exit status: that of gcloud. Arguments are what stands after the name of the command.
int tpu_config_command(const std::vector<std::string>& arguments);

}  // namespace accel::launcher
