// describe_node: this node's part in the job of many nodes that its launcher starts.
//
// Threads:  any one.
#pragma once

#include "agent/parts/node_member.h"
#include "launcher/cluster/meeting_place.h"
#include "launcher/start/elastic/elastic_settings.h"

namespace accel::cluster {

// All but open_channel. The node is named after its host and our pid, unless the user named it.
[[nodiscard]] agent::NodeMemberOptions describe_node(const launcher::ElasticRequest& request,
                                                     const MeetingPlace& place);

}  // namespace accel::cluster
