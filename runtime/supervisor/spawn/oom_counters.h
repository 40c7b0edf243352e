// OomCounters: OOM kills in cgroups that workers have moved themselves to.
//
// The cgroups that a worker is born in count for themselves (job_cgroup.h, exit_report.h). A program may make one of its
// own, and move there: who is killed there is known by its memory.events alone. Where a process was when it ended is told of
// it until it is reaped, by version 2; of version 1 nobody can tell, and nothing is left of a cgroup that is removed.
//
// Threads:  one at a time; grew() reads three files.
// Source:   Linux, Documentation/admin-guide/cgroup-v2.rst ("/proc/$PID/cgroup", "memory.events").
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <sys/types.h>

#include "runtime/system.h"

namespace accel::supervisor {

class OomCounters {
 public:
  // Whether the cgroup of a child, which may have ended and is not reaped, counts more OOM kills than when we looked
  // there last; at first: any. covered: folders that are not looked at, nor what is below them; empty ones are none.
  [[nodiscard]] bool grew(System& system, pid_t pid, const std::vector<std::string>& covered);

 private:
  std::map<std::string, std::uint64_t> seen_;  // by folder
};

}  // namespace accel::supervisor
