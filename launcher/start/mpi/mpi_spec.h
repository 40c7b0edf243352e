// MpiSpec: the job of one mpirun, made from the job of one worker.
//
// Threads:  pure, but for LaunchHost::mpi_program and .deepspeed_env.
#pragma once

#include <accel/result.h>

#include "launcher/start/mpi/mpi_launch.h"
#include "launcher/workers/launch_host.h"
#include "runtime/supervisor/protocol/job_spec.h"

namespace accel::launcher {

// `spec` holds one worker, the command of a rank. Errors  those of LaunchHost::mpi_program,
// check_mpi_program() and read_listed_variables().
[[nodiscard]] Result<void> hand_to_mpirun(supervisor::JobSpec& spec,
                                          const MpiSettings& settings,
                                          const LaunchHost& host);

}  // namespace accel::launcher
