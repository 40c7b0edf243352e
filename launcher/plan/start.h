// Start: how a job is started. What starts it decides what the launcher does after it has planned.
//
//   OneMachine       the launcher's own shim starts the workers
//   MachinesSettings   so it does on several machines, which meet without a daemon
//   ElasticSettings  several nodes, a range of them, or agents: libaccel_cluster.so goes on
//   MpiSettings      mpirun is the one process here, and starts the ranks
//   HostSettings     an ssh or pdsh for each host, where a launcher starts the workers
//   PodStart         torch_xla's xla_dist is the one process here
//   Submission       SageMaker runs the job; nothing is started here
//
// Threads:  pure functions.
#pragma once

#include <variant>

#include "launcher/start/elastic/elastic_settings.h"
#include "launcher/start/machines/settings/machines_settings.h"
#include "launcher/start/mpi/mpi_launch.h"
#include "launcher/start/sagemaker/submission.h"
#include "launcher/start/ssh/host_launch.h"

namespace accel::launcher {

struct OneMachine {};
struct PodStart {};

using Start = std::variant<OneMachine,
                           MachinesSettings,
                           ElasticSettings,
                           MpiSettings,
                           HostSettings,
                           PodStart,
                           Submission>;

// Launchers of several machines or nodes meet, or agents: the job of this one is a part.
[[nodiscard]] bool meets_others(const Start& start);

// Another program starts the workers.
[[nodiscard]] bool has_starter(const Start& start);

// The shim of this launcher starts workers of its own; false as well where agents or SLURM's nodes do.
[[nodiscard]] bool starts_workers_here(const Start& start);

// The shim of this launcher runs the workers of this machine, and tells the launcher of them.
[[nodiscard]] bool has_own_shim(const Start& start);

// Workers of all machines, of which `num_processes` are here, as far as this machine knows.
[[nodiscard]] int world_size_of(const Start& start, int num_processes);

}  // namespace accel::launcher
