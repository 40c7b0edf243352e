// CpuQuota: how much CPU time the cgroups that a process is in grant to it.
//
// A quota bounds time, not places: with two CPUs' worth of it on a machine of 64 a process may run on all of them, and
// stands still for the rest of each period when it has used its share up. So it bounds how many threads are of use. That
// of a cgroup holds for all below it: the narrowest one counts.
//
// Threads:  any; cpu_quota() reads some files of /proc and of the cgroup hierarchy.
// Source:   Linux, Documentation/admin-guide/cgroup-v2.rst ("cpu.max") and scheduler/sched-bwc.rst (version 1).
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include <accel/topology.h>

#include "runtime/system.h"

namespace accel {

struct CpuQuota {
  std::string file;  // that sets it
  double cpus = 0;   // CPU seconds per second; above 0

  // That may compute all the time; at least 1.
  [[nodiscard]] int num_threads() const;

  friend bool operator==(const CpuQuota&, const CpuQuota&) = default;
};

// The narrowest one. Empty: nothing limits this process, or nothing can be read.
[[nodiscard]] std::optional<CpuQuota> cpu_quota(System& system);

// Divides the quota among the workers of `plan`, which divides `num_cores`: fewer threads are of use, and places stay as
// they are. False: there are CPUs enough in the quota for all cores.
bool bound_threads(AffinityPlan& plan, const CpuQuota& quota, std::size_t num_cores);

}  // namespace accel
