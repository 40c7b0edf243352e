// RunRequest: the job that `accel run` asks for, from its flags and the file of --spec.
//
// What a flag names beats the file; what neither names is left to the agent.
//
// Threads:  pure functions, but for requested_job().
#pragma once

#include <string>

#include <accel/result.h>

#include "accel/v1/job.pb.h"
#include "launcher/agent_commands/agent_flags.h"
#include "launcher/workers/node_range.h"

namespace accel::cluster {

// "2" or "2:4". Errors  kUsage, which begins with `what`.
[[nodiscard]] Result<launcher::NodeRange> parse_nodes(const std::string& text, const char* what);

// With the environment of this process, less ACCEL_JOB_TOKEN, and its working folder. Requires: no objection to the flags.
// Errors  kUsage, kInvalidArgument, and those of read_spec_file() and parse_preflight().
[[nodiscard]] Result<v1::JobSpec> requested_job(const launcher::RunFlags& flags);

}  // namespace accel::cluster
