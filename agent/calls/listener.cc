#include "agent/calls/listener.h"

#include <cerrno>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "runtime/unix_address.h"

namespace accel::agent {
namespace {

// As gRPC sets it on its own listeners, from the keepalive of grpc_server.cc.
constexpr unsigned kUserTimeoutMs = 5'000;

// Those that are accepted inherit the options.
bool set_options(int socket) {
  const int on = 1;
  return ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
         ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0 &&
         ::setsockopt(
             socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUserTimeoutMs, sizeof kUserTimeoutMs) == 0;
}

}  // namespace

Result<UniqueFd> listen_at(const supervisor::TcpEndpoint& endpoint, int backlog) {
  UniqueFd listener(
      ::socket(endpoint.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener || !set_options(listener.get()) ||
      ::bind(listener.get(), endpoint.data(), static_cast<socklen_t>(endpoint.size())) != 0 ||
      ::listen(listener.get(), backlog) != 0) {
    return Error(ErrorCode::kFileIo,
                 "cannot listen at " + endpoint.address().to_string() + " port " +
                     std::to_string(endpoint.port()) + ": " + errno_text(errno),
                 "see whether another program uses the address (`ss -ltnp`), and whether it is one "
                 "of this machine");
  }
  return listener;
}

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

int port_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  const auto endpoint = supervisor::endpoint_of(reinterpret_cast<const sockaddr*>(&address));
  return endpoint ? endpoint->port() : 0;
}

}  // namespace accel::agent
