// Accelerators: devices of other makers than NVIDIA, as a configuration file names them.
//
// The peer asks which of their runtimes is installed; a launcher that loads no torch has the file's distributed_type.
//
// Threads:  pure functions.
#pragma once

#include <string_view>

namespace accel::launcher {

struct Accelerator {
  std::string_view distributed_type;  // "MULTI_XPU"
  const char* visible_variable;       // what --gpu_ids sets: "ZE_AFFINITY_MASK"
};

// Null for every other type, MULTI_GPU too. Lives as long as the program.
[[nodiscard]] const Accelerator* find_accelerator(std::string_view distributed_type);

}  // namespace accel::launcher
