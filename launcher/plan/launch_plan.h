// LaunchPlan: what `accel-launch` will do, decided before anything is started.
//
// resolve_launch() is the whole decision: command line, configuration file, environment and machine
// go in, a JobSpec for the shim comes out. A flag that was given beats the configuration file,
// which beats the default. All faults are collected before it fails; the first is the error, the
// others its "also" lines.
//
// Threads:  pure but for reading files (the configuration, the script's first bytes).
// Cost:     below 2 ms; the cores are only read when something depends on them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <accel/env_contract.h>
#include <accel/result.h>
#include <accel/topology.h>

#include "launcher/plan/start.h"
#include "launcher/run/progress_when.h"
#include "launcher/watch/watch_settings.h"
#include "launcher/workers/allocation_end.h"
#include "launcher/workers/launch_host.h"
#include "runtime/supervisor/protocol/job_spec.h"

namespace accel::launcher {

struct LaunchPlan {
  supervisor::JobSpec spec;
  bool quiet = false;                          // no notices, no report
  ProgressWhen progress = ProgressWhen::kOff;  // where stderr is a terminal
  bool stop_with_stdin = false;
  bool debug = false;    // ACCELERATE_DEBUG_MODE for the workers
  bool dry_run = false;  // print render_dry_run() and start nothing

  AllocationEnd allocation_end;
  WatchSettings watch;  // none, unless has_own_shim(start)
  Start start;          // `spec` is this machine's part, or the job of what starts the workers

  // --help or --version: the text to print instead of launching anything.
  std::optional<std::string> answer;

  std::vector<std::string> notices;  // warnings for stderr, one line each, in the order found

  // What the report calls the processes of `spec`; empty: ranks.
  std::vector<std::string> worker_names;
  std::vector<std::string> hosts;  // each process is an ssh to one of them; may be empty

  // For the dry run.
  std::string config_file;          // empty when none was read
  EnvMap inherited;                 // what spec.env is compared with
  std::vector<WorkerShare> shares;  // one per worker; empty when the cores were not needed
};

// `arguments` is argv without the program's name.
// Errors  kUsage, kUnknownFlag, kInvalidArgument, kConfig*, kScriptMissing, kScriptNotExecutable,
//         kTopology, kUnsupported: the message names flag or key and value, the remedy what to
//         type.
[[nodiscard]] Result<LaunchPlan> resolve_launch(const std::vector<std::string>& arguments,
                                                const LaunchHost& host);

}  // namespace accel::launcher
