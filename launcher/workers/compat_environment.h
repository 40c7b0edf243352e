// CompatEnvironment: the variables that the peers' launchers give a worker where accel-launch gives others, for
// --strict_compat.
//
//   OMP_NUM_THREADS   of `accelerate launch`: the flag, else what is inherited, else 1; with --cpu, when nothing is
//                     inherited, the cores of the whole machine divided by its workers. With DeepSpeed and of torchrun: 1
//                     for several workers when nothing is inherited, else left alone.
//   KMP_AFFINITY, KMP_BLOCKTIME   with --cpu, whatever is inherited
//   TORCHELASTIC_SIGNALS_TO_HANDLE   of workers with ranks
//
// and not MKL_NUM_THREADS and its like, KMP_BLOCKTIME elsewhere, PYTHONUNBUFFERED.
//
// Threads:  pure functions.
// Source:   accelerate 1.15.0, commands/launch.py and utils/launch.py; torch 2.11.0, distributed/run.py.
//           tests/peer/launch_environment.py compares all variables.
#pragma once

#include <accel/env_contract.h>

#include "launcher/workers/worker_settings.h"

namespace accel::launcher {

// In the place of thread_environment(). `num_machine_cores`: see machine_cores.h.
[[nodiscard]] EnvMap compat_thread_environment(const EnvMap& inherited,
                                               const WorkerSettings& settings,
                                               int num_machine_cores);

// What torchrun tells its workers of the signals that it handles, unless a flag says otherwise.
inline constexpr const char* kSignalsOfTorchrun = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";

}  // namespace accel::launcher
