#include "agent/access/local_caller.h"

#include <cerrno>

#include <sys/time.h>

#include "runtime/unix_address.h"

namespace accel::agent {

Result<UniqueFd> connect_to_socket(const std::string& path, int type) {
  const auto address = unix_address(path);
  if (!address) return Error(ErrorCode::kAgentUnreachable, path + " is too long for a socket");
  UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  const timeval limit = {.tv_sec = kLocalConnectLimit.count(), .tv_usec = 0};
  for (const int direction : {SO_RCVTIMEO, SO_SNDTIMEO})
    ::setsockopt(socket.get(), SOL_SOCKET, direction, &limit, sizeof limit);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) == 0)
    return socket;
  const int failure = errno;
  const std::string what = "cannot connect to " + path + ": ";
  if (failure == EAGAIN) {
    return Error(
        ErrorCode::kAgentUnreachable,
        what + "its queue was full for " + std::to_string(kLocalConnectLimit.count()) + " s",
        "ask again; the agent's log names users who are turned away");
  }
  if (failure != EACCES) return Error(ErrorCode::kAgentUnreachable, what + errno_text(failure));
  return Error(ErrorCode::kAgentRefused,
               what + errno_text(failure),
               "ask for a place in the group that the socket is for: `ls -l " + path + "`");
}

Result<Ticket> fetch_ticket(const std::string& path) {
  auto connection = connect_to_socket(path, SOCK_SEQPACKET);
  if (!connection) return std::move(connection).error();
  char buffer[128];
  const ssize_t got = ::recv(connection->get(), buffer, sizeof buffer, 0);
  if (got <= 0)
    return Error(ErrorCode::kAgentUnreachable, "the agent at " + path + " gave no ticket");
  return Ticket{.text = std::string(buffer, static_cast<std::size_t>(got)),
                .connection = *std::move(connection)};
}

}  // namespace accel::agent
