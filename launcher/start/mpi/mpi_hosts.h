// MpiHosts: a launch of DeepSpeed over the hosts of a hostfile, started by mpirun.
//
// The peer hands openmpi, mpich and mvapich to DeepSpeed with flags which that refuses under all three. Here
// filters and --num_processes choose hosts and slots as they do for ssh; mpirun starts a rank for each.
//
// Threads:  pure functions.
#pragma once

#include "launcher/start/mpi/mpi_launch.h"
#include "launcher/start/ssh/host_launch.h"

namespace accel::launcher {

[[nodiscard]] MpiSettings plan_mpi_hosts(const HostSettings& hosts);

}  // namespace accel::launcher
