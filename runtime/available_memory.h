// AvailableMemory: how much memory a program can still take on this machine.
//
// Threads:  any; reads /proc/meminfo and some files of the cgroup hierarchy.
// Source:   proc_meminfo(5): MemAvailable.
#pragma once

#include <cstdint>
#include <optional>

namespace accel {

// Of the machine as a whole. std::nullopt: not known.
[[nodiscard]] std::optional<std::uint64_t> machine_memory_available();

// Of the machine, and of each cgroup that limits this process (cgroup_memory.h). std::nullopt: not known.
[[nodiscard]] std::optional<std::uint64_t> process_memory_available();

}  // namespace accel
