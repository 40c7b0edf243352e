// SrunCommand: how a starter has SLURM start the launchers of its nodes.
//
// Threads:  pure functions.
// Source:   the man page of srun; docs/admin/slurm.md.
#pragma once

#include <string>
#include <vector>

#include <accel/env_contract.h>

namespace accel::cluster {

// What starts the launchers of `num_nodes` nodes, or of `node` alone when it is not empty.
[[nodiscard]] std::vector<std::string> srun_command(const std::vector<std::string>& node_command,
                                                    int num_nodes,
                                                    const std::string& node);

// The environment of srun: ours, without what would shape our step after the one that sbatch was asked for.
[[nodiscard]] EnvMap srun_environment(EnvMap environment, const std::string& job_folder);

}  // namespace accel::cluster
