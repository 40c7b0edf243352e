// JobRequest: turns a JobSpec of the protocol into the JobSpec of the shim, and checks it on the way.
//
// Threads:  pure functions.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <accel/env_contract.h>
#include <accel/result.h>
#include <accel/topology.h>

#include "accel/v1/control.pb.h"
#include "accel/v1/job.pb.h"
#include "agent/access/user_account.h"
#include "runtime/cpu_quota.h"
#include "runtime/supervisor/protocol/job_spec.h"
#include "runtime/system.h"

namespace accel::agent {

inline constexpr int kMaxLocalWorkers = 1024;

// Checks what does not depend on the node: ids, sizes, times, the environment. All faults.
// Errors  kInvalidArgument.
[[nodiscard]] Result<void> check_job_request(const v1::JobSpec& request);

// What only a coordinator acts on, and a job on one node would ignore: refused instead. All faults.
// Errors  kInvalidArgument.
[[nodiscard]] Result<void> check_one_node_request(const v1::JobSpec& request);

// What the machine grants to this process.
struct GrantedCpus {
  std::function<Result<Topology>(Caches)> topology = read_topology;
  std::function<std::optional<CpuQuota>()> quota = [] { return cpu_quota(real_system()); };
};

// Gives each worker its cores, memory nodes and OMP_NUM_THREADS, as the request's affinity says, within what is
// granted here. Errors  kTopology, kInvalidArgument (more cores are reserved than there are).
[[nodiscard]] Result<void> apply_affinity(const v1::JobSpec& request,
                                          const GrantedCpus& granted,
                                          supervisor::JobSpec& spec);

// Adds the variables that the request takes from the environment of this node's agent; those of the job's own win.
// Errors  kAgentRefused: the job runs as another user than the agent.
[[nodiscard]] Result<void> pass_environment(const v1::JobSpec& request,
                                            const EnvLookup& agents,
                                            bool is_other_user,
                                            supervisor::JobSpec& spec);

// The jitter and on_cause of the request. Requires: check_job_request().
void set_restart_rules(const v1::RestartPolicy& asked, supervisor::RestartPolicy& policy);

// How it is stopped, with the defaults of what it does not say. Requires: check_job_request().
[[nodiscard]] supervisor::StopPolicy stop_policy_of(const v1::JobSpec& request);

// How long the workers have, when the request says so; std::nullopt: the job's own grace.
// Errors  kInvalidArgument: below 0, or more than 366 days.
[[nodiscard]] Result<std::optional<supervisor::Milliseconds>> grace_of(const v1::StopReq& request);

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
