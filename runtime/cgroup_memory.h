// CgroupMemory: how much memory the cgroups that a process is in leave to it.
//
// A cgroup limits what it and all below it take, so every one from the process's own up to the root of what it can see may
// be the narrowest. What counts as taken has the pages of files in it, which the kernel gives back when it needs them: the
// part of those that was not used lately is free.
//
// Threads:  any; reads some files of /proc and of the cgroup hierarchy.
// Source:   cgroups(7); Linux, Documentation/admin-guide/cgroup-v2.rst ("memory") and cgroup-v1/memory.rst.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/system.h"

namespace accel {

struct CgroupRoom {
  std::string file;  // that sets the limit
  std::uint64_t limit_bytes = 0;
  std::uint64_t free_bytes = 0;  // at most the limit

  friend bool operator==(const CgroupRoom&, const CgroupRoom&) = default;
};

// The cgroups of this process that have a limit, its own first. Empty: nothing limits it, or nothing can be read.
[[nodiscard]] std::vector<CgroupRoom> cgroup_rooms(System& system);

}  // namespace accel
