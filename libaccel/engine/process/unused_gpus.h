// UnusedGpus: what a program says that trains on the CPU beside GPUs which it cannot use.
#pragma once

#include <optional>
#include <string>

#include <accel/env_contract.h>

#include "runtime/nvidia_gpus.h"

namespace accel {

// std::nullopt where no GPU is visible to CUDA under the environment.
[[nodiscard]] std::optional<std::string> unused_gpu_notice(const NvidiaMachine& machine,
                                                           const EnvMap& environment);

}  // namespace accel
