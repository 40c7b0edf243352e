// Listening sockets of the agent.
//
// Threads:  pure but for the sockets.
#pragma once

#include <string>

#include <accel/result.h>

#include "runtime/supervisor/kernel/tcp_endpoint.h"
#include "runtime/unique_fd.h"

namespace accel::agent {

// Bound, not blocking, closed on exec. What is accepted gives up 5 s after what is not acknowledged. Errors  kFileIo.
[[nodiscard]] Result<UniqueFd> listen_at(const supervisor::TcpEndpoint& endpoint, int backlog);

// The same at a path, where nothing may be. Errors  kFileIo, kInvalidArgument: the path is too long.
[[nodiscard]] Result<UniqueFd> listen_at_path(const std::string& path, int backlog);

// 0 when it is not bound.
[[nodiscard]] int port_of(int socket);

}  // namespace accel::agent
