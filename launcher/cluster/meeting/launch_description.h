// LaunchDescription: what others must know of a launch.
//
// Threads:  pure functions, but for the working folder that describe_for_agents() reads.
#pragma once

#include <chrono>

#include "accel/v1/job.pb.h"
#include "agent/parts/node_member.h"
#include "launcher/cluster/meeting/meeting_place.h"
#include "launcher/start/elastic/elastic_settings.h"

namespace accel::cluster {

// How long workers go on without a coordinator that lives in another launcher: it will not come back.
inline constexpr std::chrono::seconds kControlLossGrace{10};

// For the coordinator; the program stays with each node.
[[nodiscard]] v1::JobSpec describe_launch(const launcher::ElasticRequest& request);

// For agents, which start the program themselves: in the folder where the launcher was started, with the environment
// that rank 0 would have here.
[[nodiscard]] v1::JobSpec describe_for_agents(const launcher::ElasticRequest& request);

// This node's part in it. All but open_channel. The node is named after its host and our pid, unless the user named it.
[[nodiscard]] agent::NodeMemberOptions describe_node(const launcher::ElasticRequest& request,
                                                     const MeetingPlace& place);

// A check of a flag as one of the protocol.
void describe_check(const supervisor::PreflightCheck& check, v1::Check& out);

}  // namespace accel::cluster
