#include "runtime/supervisor/http/listening_socket.h"

#include <cerrno>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace accel::supervisor {
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

Result<UniqueFd> listen_at(const TcpEndpoint& endpoint, int backlog) {
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

int port_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  const auto endpoint = endpoint_of(reinterpret_cast<const sockaddr*>(&address));
  return endpoint ? endpoint->port() : 0;
}

}  // namespace accel::supervisor
