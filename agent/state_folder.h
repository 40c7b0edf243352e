// StateFolder: the folders of an agent, and the lock that makes it the only one there.
//
// Threads:  plain functions.
#pragma once

#include <string>

#include <accel/result.h>

#include "agent/agent_config.h"
#include "runtime/unique_fd.h"

namespace accel::agent {

// Creates what is missing and takes the lock, which lasts as long as the descriptor.
// Errors  kAgentRunning (names the holder), kFileIo.
[[nodiscard]] Result<UniqueFd> take_state_folder(const AgentConfig& config);

// Who may connect to the socket at `path`. Errors  kFileIo, kInvalidArgument (no such group).
[[nodiscard]] Result<void> open_socket_to_users(const std::string& path, const AgentConfig& config);

}  // namespace accel::agent
