// TopCommand: `accel top`: the jobs of an agent on a whole screen.
//
// Threads:  one, and that of its TopFeed.
#pragma once

#include "launcher/agent_commands/agent_flags.h"
#include "launcher/cluster/agents/agent_client.h"

namespace accel::cluster {

// Gives the exit status of `accel`: that of `accel status` when the agent does not answer the first question.
// Requires: block_top_signals(), unless flags.once.
[[nodiscard]] int show_top(const AgentClient& client, const launcher::AgentFlags& flags);

}  // namespace accel::cluster
