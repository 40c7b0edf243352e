// MachineCores: how many physical cores this machine has, granted to us or not.
//
// What psutil.cpu_count(logical=False) counts, which the peer divides among its workers. For work of our own the cores
// that are granted count (accel/topology.h).
#pragma once

#include <filesystem>

namespace accel::launcher {

inline constexpr const char* kCpuFolder = "/sys/devices/system/cpu";

// Below `folder`, the distinct sets of CPUs that are one core; those that are off are not counted. 1 when none is there.
// Cost: reads a file for each CPU.
[[nodiscard]] int num_machine_cores(const std::filesystem::path& folder = kCpuFolder);

}  // namespace accel::launcher
