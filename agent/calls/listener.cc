#include "agent/calls/listener.h"

#include <cerrno>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "runtime/unix_address.h"

namespace accel::agent {
namespace {

// As gRPC sets it on its own listeners, from the keepalive of grpc_server.cc.
constexpr unsigned kUserTimeoutMs = 5'000;

sockaddr_storage to_sockaddr(const TcpAddress& address) {
  sockaddr_storage out{};
  auto& v4 = reinterpret_cast<sockaddr_in&>(out);
  if (::inet_pton(AF_INET, address.host.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(address.port);
    return out;
  }
  auto& v6 = reinterpret_cast<sockaddr_in6&>(out);
  ::inet_pton(AF_INET6, address.host.c_str(), &v6.sin6_addr);
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(address.port);
  return out;
}

// Those that are accepted inherit the options.
bool set_options(int socket) {
  const int on = 1;
  return ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
         ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0 &&
         ::setsockopt(
             socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUserTimeoutMs, sizeof kUserTimeoutMs) == 0;
}

}  // namespace

Result<UniqueFd> listen_at(const TcpAddress& address, int backlog) {
  const sockaddr_storage to = to_sockaddr(address);
  UniqueFd listener(::socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener || !set_options(listener.get()) ||
      ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0 ||
      ::listen(listener.get(), backlog) != 0) {
    return Error(ErrorCode::kFileIo,
                 "cannot listen at " + address.host + " port " + std::to_string(address.port) +
                     ": " + errno_text(errno),
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
  if (address.ss_family != AF_INET && address.ss_family != AF_INET6) return 0;
  return ntohs(address.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(address).sin_port
                                            : reinterpret_cast<sockaddr_in6&>(address).sin6_port);
}

}  // namespace accel::agent
