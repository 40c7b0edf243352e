#include "runtime/available_memory.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "runtime/cgroup_memory.h"
#include "runtime/system.h"

namespace accel {

std::optional<std::uint64_t> machine_memory_available() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("MemAvailable:")) continue;
    return std::stoull(line.substr(line.find(':') + 1)) << 10;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> process_memory_available() {
  std::optional<std::uint64_t> available = machine_memory_available();
  for (const CgroupRoom& room : cgroup_rooms(real_system()))
    available = std::min(available.value_or(room.free_bytes), room.free_bytes);
  return available;
}

}  // namespace accel
