// Listening sockets of the agent at paths; those of TCP: runtime/supervisor/http/listening_socket.h.
//
// Threads:  pure but for the sockets.
#pragma once

#include <string>

#include <accel/result.h>

#include "runtime/unique_fd.h"

namespace accel::agent {

// Bound, not blocking, closed on exec; nothing may be at the path. Errors  kFileIo, kInvalidArgument: the path is too long.
[[nodiscard]] Result<UniqueFd> listen_at_path(const std::string& path, int backlog);

}  // namespace accel::agent
