// SlurmNodes: which part of a job of several nodes a launch has by its place in a SLURM allocation.
//
//   place                                       part
//   batch script, several nodes                 kStarter: starts one launcher a node with srun
//   task, several nodes, one task a node        kHostNode on the step's first node, kNode on the others
//   task of a starter                           kNode
//   one node                                    none: a launch on one machine
//   several tasks on one node                   refused, naming the srun line to use
//   batch script, several components            refused likewise: SLURM's variables and srun mean the first alone
//
// A place of several nodes never becomes a job of one: that is an error with its remedy.
//
// Threads:  pure functions.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include <accel/result.h>

#include "launcher/start/elastic/elastic_settings.h"
#include "launcher/start/slurm/slurm_environment.h"
#include "launcher/text/program.h"
#include "launcher/workers/launcher_variables.h"

namespace accel::launcher {

struct SlurmRequest {
  std::optional<std::pair<int, int>> num_nodes;  // --nnodes
  bool is_standalone = false;                    // --standalone, which is one node too
  std::string starter_folder;                    // kSlurmFolderVariable
  std::string base_folder;                       // absolute: where the job's own folder is made
  std::string unique;                            // makes the folder's name unique
  Program program = Program::kLaunch;            // whose words errors use
};

// `meeting`, `node_id`, `expected_hosts` and what else SLURM says; empty for one machine. Errors  kUsage.
[[nodiscard]] Result<std::optional<ElasticSettings>> plan_slurm_nodes(const SlurmPlace& place,
                                                                      const SlurmRequest& request);

// The batch script of a heterogeneous job, where a line that says nothing of nodes would be of its first component.
// kUsage, with the srun line that takes all; empty: it is none.
[[nodiscard]] std::optional<Error> refuse_components(const SlurmPlace& place, Program program);

}  // namespace accel::launcher
