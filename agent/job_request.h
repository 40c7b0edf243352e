// JobRequest: turns a JobSpec of the protocol into the JobSpec of the shim, and checks it on the way.
//
// Threads:  pure functions.
#pragma once

#include <string>
#include <vector>

#include <accel/result.h>

#include "accel/v1/job.pb.h"
#include "agent/user_account.h"
#include "runtime/supervisor/job_spec.h"

namespace accel::agent {

inline constexpr int kMaxLocalWorkers = 1024;

// Checks what does not depend on the node: ids, sizes, times, the environment. All faults.
// Errors  kInvalidArgument.
[[nodiscard]] Result<void> check_job_request(const v1::JobSpec& request);

// A name for a job without one: the program's, and eight random digits.
[[nodiscard]] std::string make_job_id(const v1::JobSpec& request);

struct LocalPart {
  int node_rank = 0;
  int num_nodes = 1;
  int first_rank = 0;
  int num_ranks = 1;
  int world_size = 1;
};

// The job of one node. `scrub`: the job runs as another user than the agent, and variables that change how programs
// are loaded are left out; their names are added to `scrubbed`.
// Requires: check_job_request().
[[nodiscard]] supervisor::JobSpec make_job_spec(const v1::JobSpec& request,
                                                const LocalPart& part,
                                                const UserAccount& user,
                                                const std::string& log_dir,
                                                bool scrub,
                                                std::vector<std::string>& scrubbed);

}  // namespace accel::agent
