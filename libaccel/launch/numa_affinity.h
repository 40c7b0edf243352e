// NumaAffinity: which cores a process should keep to.
//
// Threads:  pure.
#pragma once

#include <vector>

#include <accel/env_contract.h>
#include <accel/topology.h>

#include "runtime/nvidia_gpus.h"

namespace accel::launch {

struct AffinityQuestion {
  int local_rank = 0;
  int local_world_size = 1;
  NvidiaMachine gpus;
  EnvMap environment;  // CUDA_VISIBLE_DEVICES
  Topology topology;   // what is granted
};

// Ascending OS indices; empty: keep what there is (the machine does not say where the GPU hangs, or nothing near it is
// granted). Requires local_rank >= 0, local_world_size >= 1 and a core.
[[nodiscard]] std::vector<int> cores_near(const AffinityQuestion& question);

}  // namespace accel::launch
