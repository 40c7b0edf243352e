// LaunchJob: the JobSpec of a launch inside a program.
//
// Threads:  pure functions.
#pragma once

#include <functional>
#include <string>

#include <accel/env_contract.h>
#include <accel/launchers.h>
#include <accel/result.h>

#include "runtime/supervisor/protocol/job_outcome.h"
#include "runtime/supervisor/protocol/job_spec.h"

namespace accel::launch {

// What the process knows that asks.
struct LaunchPlace {
  EnvMap environment;
  std::string program;         // its path
  std::string job_id;          // unlike any other on this machine
  std::string private_folder;  // to be made for error files
  // Whether a host is this machine; asked of node 0 of c10d.
  std::function<bool(const std::string& host)> is_own_host = [](const std::string&) {
    return true;
  };
};

// Of debug_launcher(). `meeting_file`: ACCELERATE_DEBUG_RDV_FILE, which exists.
// Errors  kInvalidArgument.
[[nodiscard]] Result<supervisor::JobSpec> plan_debug_job(const LaunchPlace& place,
                                                         int num_processes,
                                                         const std::string& meeting_file);

// Of notebook_launcher(). Errors  kInvalidArgument and kUnsupported name the option.
[[nodiscard]] Result<supervisor::JobSpec> plan_notebook_job(const LaunchPlace& place,
                                                            const NotebookLauncherOptions& options);

// What the options add to the variables of whoever runs the function: its precision, and `env`.
[[nodiscard]] EnvMap variables_of(const NotebookLauncherOptions& options);

// How the job failed. Requires: not outcome.success.
[[nodiscard]] LaunchError launch_error(const supervisor::JobOutcome& outcome, int num_workers);

}  // namespace accel::launch
