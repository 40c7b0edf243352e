// GpuAffinity: the cores of workers that have GPUs, near those GPUs.
//
// A GPU hangs on the PCI lanes of one memory node; a worker elsewhere reaches it, and its own memory, through the link
// between the nodes.
//
// Threads:  pure functions.
#pragma once

#include <vector>

#include <accel/env_contract.h>
#include <accel/topology.h>

#include "runtime/nvidia_gpus.h"

namespace accel::launcher {

// Of each worker, by local rank, the CPUs of its GPU's memory node under CUDA_VISIBLE_DEVICES of `environment`; workers
// that are more than the GPUs begin with the first one again. Empty when a GPU's place is not known.
[[nodiscard]] std::vector<std::vector<int>> cpus_near_gpus(const NvidiaMachine& machine,
                                                           const EnvMap& environment,
                                                           int num_workers);

// As plan_affinity(), for workers of the same place among themselves. Locality is given up, for all, where a place has
// no granted core, or its workers would share cores that they do not share on the whole machine. Requires a worker and
// a core.
[[nodiscard]] AffinityPlan plan_affinity_near(const Topology& topology,
                                              const std::vector<std::vector<int>>& places,
                                              AffinityMode mode);

}  // namespace accel::launcher
