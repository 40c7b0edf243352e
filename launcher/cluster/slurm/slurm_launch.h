// SlurmLaunch: accel-launch in the batch script of an allocation of many nodes: it starts their launchers, and hosts
// the coordinator, but runs no workers itself.
//
// So the coordinator outlives every step of srun. A node whose launcher is lost gets a new one as long as SLURM gives
// it; a signal reaches all nodes through the coordinator.
//
// Threads:  start_slurm_nodes() runs a loop of its own.
// Source:   docs/admin/slurm.md; tests/integration/slurm.
#pragma once

#include "launcher/start/elastic/elastic_settings.h"

namespace accel::cluster {

// Gives the exit status.
[[nodiscard]] int start_slurm_nodes(launcher::ElasticRequest request);

}  // namespace accel::cluster
