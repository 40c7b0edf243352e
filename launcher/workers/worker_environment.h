// WorkerEnvironment: the variables that accel-launch adds to those it was started with.
//
// Identity (RANK and its kin) is not here: the supervisor adds it per worker and generation.
//
// Threads:  pure functions.
#pragma once

#include <string>
#include <vector>

#include <accel/env_contract.h>
#include <accel/topology.h>

#include "launcher/workers/worker_settings.h"

namespace accel::launcher {

// The environment all workers share: `inherited`, without the identity of an outer accel-launch
// when this one runs inside a worker of it, with the ACCELERATE_* variables of `settings`.
[[nodiscard]] EnvMap base_environment(const EnvMap& inherited,
                                      const WorkerSettings& settings,
                                      EnvMode mode,
                                      bool is_python);

// True when the number of compute threads is ours to decide: no flag for it, no --strict_compat and no OMP_NUM_THREADS.
[[nodiscard]] bool decides_num_threads(const EnvMap& inherited, const WorkerSettings& settings);

// The thread variables of one worker, without --strict_compat; those that the user has set are left out, except
// OMP_NUM_THREADS when --num_cpu_threads_per_process says it.
[[nodiscard]] EnvMap thread_environment(const EnvMap& inherited,
                                        const WorkerSettings& settings,
                                        int num_threads);

}  // namespace accel::launcher
