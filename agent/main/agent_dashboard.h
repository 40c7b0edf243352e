// AgentDashboard: what the agent knows, for its page.
//
// The coordinator's agent knows all nodes, and of each job over several nodes where its ranks stand; every agent knows the workers of
// its own jobs and parts. Both are put together by the uuid of the job.
//
// Threads:  on the loop, but for add_coordinator(), which is on the coordinator's.
// Source:   docs/guides/dashboard.md.
#pragma once

#include <string>

#include "agent/coordinator/state/state.h"
#include "agent/jobs/job_runner.h"
#include "agent/main/dashboard_logs.h"
#include "agent/main/job_curves.h"
#include "agent/parts/node_jobs.h"
#include "runtime/supervisor/dashboard/dashboard_server.h"

namespace accel::agent {

// Nodes, and jobs over several nodes.
void add_coordinator(supervisor::DashboardState& shown, const State& state, TimePoint now);

// The workers of this node's parts.
void add_parts(supervisor::DashboardState& shown,
               const std::string& node,
               const NodeJobs& parts,
               TimePoint now);

// The jobs on this node alone.
void add_jobs(supervisor::DashboardState& shown,
              const std::string& node,
              const JobRunner& jobs,
              TimePoint now);

// The end of the output of a worker of this node; `parts`: nullptr where there are none. Read in the turn of the job's user,
// for as long as `logs` has patience.
void read_log(const supervisor::LogQuestion& question,
              const JobRunner& jobs,
              const NodeJobs* parts,
              DashboardLogs& logs,
              std::function<void(supervisor::LogTail)> done);

// Where the trackers of a job or part of this node write; without a path where nobody said, or it is not here.
[[nodiscard]] TrackingFolder tracking_folder_of(const std::string& job,
                                                const JobRunner& jobs,
                                                const NodeJobs* parts);

}  // namespace accel::agent
