#include "launcher/cluster/node_description.h"

#include <unistd.h>

#include "agent/config/node_address.h"
#include "launcher/cluster/endpoint.h"
#include "launcher/cluster/launch_description.h"

namespace accel::cluster {

agent::NodeMemberOptions describe_node(const launcher::ElasticRequest& request,
                                       const MeetingPlace& place) {
  const launcher::ElasticSettings& settings = request.settings;
  agent::NodeMemberOptions options;
  const std::string own_host = agent::host_name();
  options.node.node_id =
      settings.node_id.empty() ? own_host + "-" + std::to_string(::getpid()) : settings.node_id;
  options.node.boot_id = agent::boot_id();
  options.node.hostname = own_host;
  const std::string& chosen = settings.etcd.own_address;
  options.node.addresses = {chosen.empty() ? own_address_towards(place.endpoint, place.is_local)
                                           : chosen};
  options.node.slots = static_cast<int>(request.spec.workers.size());
  options.token_key = place.token_key;
  options.preferred_index = settings.node_index;
  options.job = describe_launch(request);
  options.workers = {.job_uuid = settings.job,
                     .spec = request.spec,
                     .shim = {},
                     .address = options.node.addresses[0]};
  options.workers.spec.node_id = options.node.node_id;
  return options;
}

}  // namespace accel::cluster
