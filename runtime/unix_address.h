// UnixAddress: where a socket of the file system is.
//
// Threads:  a pure function.
#pragma once

#include <optional>
#include <string>

#include <sys/socket.h>
#include <sys/un.h>

namespace accel {

// std::nullopt: the path is longer than the kernel takes (107 bytes).
[[nodiscard]] inline std::optional<sockaddr_un> unix_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return std::nullopt;
  path.copy(address.sun_path, path.size());
  return address;
}

}  // namespace accel
