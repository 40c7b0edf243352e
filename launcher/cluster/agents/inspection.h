// Inspection: the commands that look at one job from more sides than its state: ledger, diagnose, watch.
//
// Each gives the exit status of `accel`.
//
// Threads:  one; they wait for the agent.
#pragma once

#include <string>

#include "launcher/cluster/agents/agent_client.h"
#include "launcher/cluster/agents/patience.h"

namespace accel::cluster {

// Where the job's time went, by account.
[[nodiscard]] int show_ledger(const AgentClient& client,
                              const std::string& job,
                              bool json,
                              Patience patience);

// Each change, until the job has ended; of all jobs that one may see when `job` is empty, for ever.
[[nodiscard]] int watch(const AgentClient& client, const std::string& job, bool json);

// What the kernel says about each worker.
[[nodiscard]] int show_diagnosis(const AgentClient& client, const std::string& job, bool json);

}  // namespace accel::cluster
