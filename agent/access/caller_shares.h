// Whose share of connections, streams and jobs a caller takes.
//
// Threads:  plain functions.
#pragma once

#include <string>
#include <vector>

#include <sys/socket.h>
#include <sys/types.h>

#include "agent/coordinator/state/shares.h"

namespace accel::agent {

// A caller that is a process of this user.
[[nodiscard]] std::string caller_of(uid_t user);

// Root and the agent's own user: those who mend an agent that others flood, and its own health check.
[[nodiscard]] std::vector<std::string> favoured_users();

// Who shares a share: an IPv4 address; the first 64 bits of an IPv6 address, since a caller has all of them.
[[nodiscard]] std::string caller_of(const sockaddr_storage& address);

}  // namespace accel::agent
