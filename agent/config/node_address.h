// NodeAddress: who this machine is to the other nodes of a job.
//
// Threads:  plain functions.
#pragma once

#include <string>

#include <sys/socket.h>

#include "agent/config/agent_config.h"

namespace accel::agent {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};
[[nodiscard]] SocketAddress make_socket_address(const TcpAddress& address);

// The numeric host; empty for another family than IPv4 and IPv6.
[[nodiscard]] std::string host_of(const sockaddr* address);

// Where packets to `to` leave from; nothing is sent. Empty: there is no way.
[[nodiscard]] std::string source_towards(const TcpAddress& to);

// The address that packets to `endpoint` leave from, by which other nodes reach us; its own host when there is no way.
[[nodiscard]] std::string own_address_towards(const TcpAddress& endpoint);

// Of the running machine; empty when /proc does not say.
[[nodiscard]] std::string boot_id();

// One for each NVIDIA GPU; without any, one for each core that this process may use.
[[nodiscard]] int count_slots();

}  // namespace accel::agent
