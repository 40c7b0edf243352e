// StateFolder: the folders of an agent, and the lock that makes it the only one there.
//
// Threads:  plain functions.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <sys/types.h>

#include <accel/result.h>

#include "agent/config/agent_config.h"
#include "runtime/unique_fd.h"

namespace accel::agent {

// Creates what is missing and takes the lock, which lasts as long as the descriptor.
// Errors  kAgentRunning (names the holder), kFileIo.
[[nodiscard]] Result<UniqueFd> take_state_folder(const AgentConfig& config);

// Who may connect to the sockets: its owner alone, or those of a group, or everybody.
struct SocketAccess {
  mode_t mode = 0600;
  std::optional<gid_t> group;
};
inline constexpr const char* kDefaultSocketGroup = "accel";

// socket_group of the configuration: a group, "*" for everybody, or empty: kDefaultSocketGroup where it exists and the agent
// is root, else the agent's own user. Errors  kInvalidArgument: there is no such group.
[[nodiscard]] Result<SocketAccess> choose_socket_access(
    const std::string& socket_group,
    uid_t agent_uid,
    const std::function<std::optional<gid_t>(const std::string&)>& find_group);
[[nodiscard]] std::optional<gid_t> find_group(const std::string& name);

// Errors  kFileIo.
[[nodiscard]] Result<void> open_socket(const std::string& path, const SocketAccess& access);

}  // namespace accel::agent
