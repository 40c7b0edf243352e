// LaunchScript: the command of the workers, as the command line names it.
//
// Threads:  reads the file system; no state.
#pragma once

#include <accel/result.h>

#include "launcher/flags/flags.h"
#include "launcher/plan/launch_settings.h"
#include "launcher/workers/launch_host.h"
#include "launcher/workers/script.h"

namespace accel::launcher {

// Errors  kUsage for kinds of scripts that exclude each other; otherwise as resolve_command().
[[nodiscard]] Result<WorkerCommand> find_command(const CommandLine& line,
                                                 const EnvMap& environment);

// For the cores of TPUs. With a pod the script is that of its machines, which this one need not have.
// Requires: settings.tpu. Errors  as find_command(); no Python.
[[nodiscard]] Result<WorkerCommand> find_tpu_command(const CommandLine& line,
                                                     const LaunchSettings& settings,
                                                     const LaunchHost& host);

}  // namespace accel::launcher
