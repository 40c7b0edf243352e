#include "agent/calls/listener.h"

#include <cerrno>

#include <sys/socket.h>

#include "runtime/unix_address.h"

namespace accel::agent {

Result<UniqueFd> listen_at_path(const std::string& path, int backlog) {
  const auto to = unix_address(path);
  if (!to) {
    return Error(ErrorCode::kInvalidArgument,
                 path + " is too long for a socket",
                 "choose a shorter runtime_dir: a socket's path has at most 107 bytes");
  }
  UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener ||
      ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&*to), sizeof *to) != 0 ||
      ::listen(listener.get(), backlog) != 0) {
    return Error(ErrorCode::kFileIo,
                 "cannot listen at " + path + ": " + errno_text(errno),
                 "see who owns the folder");
  }
  return listener;
}

}  // namespace accel::agent
