// ListeningSocket: a TCP socket that strangers connect to.
//
// Threads:  pure but for the sockets.
#pragma once

#include <accel/result.h>

#include "runtime/supervisor/kernel/tcp_endpoint.h"
#include "runtime/unique_fd.h"

namespace accel::supervisor {

// Bound, not blocking, closed on exec. What is accepted gives up 5 s after what is not acknowledged. Errors  kFileIo.
[[nodiscard]] Result<UniqueFd> listen_at(const TcpEndpoint& endpoint, int backlog);

// 0 when it is not bound.
[[nodiscard]] int port_of(int socket);

}  // namespace accel::supervisor
