// WorkerEnd: how a worker or a job ended, for the protocol and in words.
//
// Threads:  pure functions.
#pragma once

#include <string>
#include <vector>

#include "accel/v1/job.pb.h"
#include "runtime/supervisor/protocol/job_outcome.h"

namespace accel::agent {

[[nodiscard]] v1::ExitInfo describe_end(const supervisor::WorkerExit& exit);
// The causes that `name`, an ExitInfo.Cause without its prefix, stands for in restart.on_cause. Empty: none that a job
// may have a rule for.
[[nodiscard]] std::vector<supervisor::ExitCause> causes_named(const std::string& name);
[[nodiscard]] supervisor::WorkerExit to_worker_exit(const v1::ExitInfo& info);

// "rank 1 was ended by SIGSEGV", its last lines, leftovers and notices. Empty when there is nothing to say.
[[nodiscard]] std::string describe_outcome(const supervisor::JobOutcome& outcome);

}  // namespace accel::agent
