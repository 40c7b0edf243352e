// CoreShares: which cores each worker of a launch gets, and for how many threads.
//
// The cores that are granted are divided, near its GPU where a worker has one; a quota of CPU time bounds the threads
// (runtime/cpu_quota.h).
//
// Threads:  pure but for what the host reads.
#pragma once

#include <string>
#include <vector>

#include <accel/result.h>
#include <accel/topology.h>

#include "launcher/flags/flags.h"
#include "launcher/workers/launch_host.h"
#include "launcher/workers/worker_settings.h"

namespace accel::launcher {

// Empty when nothing depends on the cores. Without --enable_cpu_affinity a machine that cannot be read only costs the
// thread counts; more workers than cores, or than the quota's CPUs, are a notice. Errors  kTopology.
[[nodiscard]] Result<AffinityPlan> divide_cores(const WorkerSettings& settings,
                                                const CommandLine& line,
                                                const LaunchHost& host,
                                                std::vector<std::string>& notices);

}  // namespace accel::launcher
