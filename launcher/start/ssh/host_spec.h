// HostSpec: the job of one ssh or pdsh for each host, made from the job of the workers.
//
// Threads:  reads .deepspeed_env; no state.
#pragma once

#include <string>
#include <vector>

#include <accel/result.h>

#include "launcher/flags/flags.h"
#include "launcher/start/ssh/host_launch.h"
#include "launcher/workers/launch_host.h"
#include "runtime/supervisor/protocol/job_spec.h"

namespace accel::launcher {

// Changes `spec`. Output, restarts and checks are the business of the
// hosts' launchers, which get the flags for them.
// Errors  kConfigSyntax of .deepspeed_env, kExecFailed without ssh, or without pdsh when it was named.
[[nodiscard]] Result<void> hand_to_hosts(supervisor::JobSpec& spec,
                                         const HostSettings& settings,
                                         const CommandLine& line,
                                         const LaunchHost& host,
                                         std::vector<std::string>& notices);

// The flags of `line` that accel-torchrun on the hosts gets: all about output, failures and how the
// script is run.
[[nodiscard]] std::vector<std::string> flags_for_hosts(const CommandLine& line);

}  // namespace accel::launcher
