// NodeAddress: who this machine is to the other nodes of a job.
//
// Threads:  plain functions.
#pragma once

#include <string>

#include "runtime/supervisor/kernel/tcp_endpoint.h"

namespace accel::agent {

// The address that packets to `endpoint` leave from, by which other nodes reach us; its own host when there is no way.
[[nodiscard]] std::string own_address_towards(const supervisor::TcpEndpoint& endpoint);

// Of the running machine; empty when /proc does not say.
[[nodiscard]] std::string boot_id();

// One for each NVIDIA GPU; without any, one for each core that this process may use.
[[nodiscard]] int count_slots();

}  // namespace accel::agent
