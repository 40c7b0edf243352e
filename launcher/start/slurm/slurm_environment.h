// SlurmEnvironment: where in a SLURM allocation this process runs, by the variables that SLURM sets.
//
//   batch   the script of sbatch, or the shell of salloc: once, beside the nodes' work
//   task    started by srun: one of several on one of several nodes
//
// Host lists and counts are read here, without scontrol: a container seldom has it. A value that cannot be read is an
// error, never a job of one node.
//
// Threads:  pure functions.
// Source:   the man pages of sbatch and srun ("OUTPUT ENVIRONMENT VARIABLES"); tests/integration/slurm.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accel/env_contract.h>
#include <accel/result.h>

#include "launcher/workers/allocation_end.h"

namespace accel::launcher {

enum class SlurmRole { kBatch, kTask };

struct SlurmPlace {
  SlurmRole role = SlurmRole::kBatch;
  std::string job_id;
  std::string step_id;    // kTask
  std::string cluster;    // may be empty
  int restart_count = 0;  // how often the job was queued again
  AllocationEnd end;
  std::string node_name;               // ours, as SLURM calls it; may be empty
  int num_components = 1;              // of a heterogeneous job; kBatch: `hosts` is the first's
  int node_index = 0;                  // kTask: of ours in the step
  int local_id = 0;                    // kTask: of this task on its node
  int tasks_on_node = 1;               // kTask
  std::vector<std::string> hosts;      // of the step, or of the job for the batch script; in order
  std::vector<std::string> job_hosts;  // of the job, in order; empty when SLURM does not say
  std::string launch_address;          // kTask: of the machine whose srun started it; may be empty

  [[nodiscard]] int num_nodes() const { return static_cast<int>(hosts.size()); }
};

// Empty outside of an allocation. Errors  kEnvInvalid: names the variable, its value and what was expected.
[[nodiscard]] Result<std::optional<SlurmPlace>> read_slurm(const EnvMap& environment);

// "2(x3),1": one number for each node, 2 2 2 1. Errors  kEnvInvalid.
[[nodiscard]] Result<std::vector<int>> expand_task_counts(std::string_view name,
                                                          std::string_view text);

}  // namespace accel::launcher
