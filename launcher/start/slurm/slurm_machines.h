// SlurmMachines: what --num_machines, or num_machines of a file, means inside an allocation of SLURM.
//
//   given beside it               the machines are
//   nothing                       the nodes of the step or allocation, which must be as many; rank and
//                                 address of a file do not count, every node reads the same
//   --main_process_ip alone       told by the user, but for the rank, which is the node's in the step
//   --machine_rank                told by the user
//
// Threads:  pure functions.
#pragma once

#include <optional>

#include <accel/result.h>

#include "launcher/flags/flags.h"
#include "launcher/start/slurm/slurm_environment.h"

namespace accel::launcher {

struct SlurmMachines {
  bool are_nodes = false;   // SLURM brings them together: see slurm_nodes.h
  std::optional<int> rank;  // of this machine, where nobody says it
};

// `place` is empty outside of SLURM. Errors  kUsage: another number than SLURM has, several tasks on a
// node.
[[nodiscard]] Result<SlurmMachines> choose_slurm_machines(const CommandLine& line,
                                                          const std::optional<SlurmPlace>& place,
                                                          int num_machines);

}  // namespace accel::launcher
