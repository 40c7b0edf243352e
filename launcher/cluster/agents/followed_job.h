// FollowedJob: a job of the agents that somebody submits and stays with, as if it ran here.
//
//   submit --> copy its output --> how it ended --> exit status
//        SIGINT, SIGTERM, SIGHUP: asks the agent to stop the job; the second one kills it
//
// Threads:  submit_and_follow() blocks, and has a thread of its own for the signals.
#pragma once

#include <functional>
#include <string>

#include <accel/result.h>

#include "accel/v1/control.pb.h"
#include "launcher/cluster/agents/agent_client.h"
#include "launcher/cluster/agents/patience.h"
#include "launcher/start/elastic/elastic_settings.h"

namespace accel::cluster {

// Blocks the signals that submit_and_follow() forwards. Before gRPC has threads: one that does not block them
// would end the program there.
void block_forwarded_signals();

// `until_begun`: with a coordinator that is to take the job. `told` is called with the job as soon as there is one. Gives the job as it ended.
// Errors  kAgentUnreachable, kAgentRefused, and what the agent says of the specification.
[[nodiscard]] Result<v1::Job> submit_and_follow(const AgentClient& client,
                                                const v1::JobSpec& spec,
                                                Patience until_begun,
                                                const std::function<void(const v1::Job&)>& told);

// What to say of a job that did not succeed; empty: nothing.
[[nodiscard]] std::string ending_text(const v1::Job& job);

// accel-launch --agent: gives the job to the agent of this machine and follows it. Gives the exit status.
int launch_by_agent(const launcher::ElasticRequest& request);

}  // namespace accel::cluster
