#include "runtime/supervisor/store/tcp_listener.h"

#include <cerrno>
#include <charconv>

#include <boost/asio/ip/address.hpp>
#include <sys/socket.h>

#include "runtime/supervisor/kernel/exhausted.h"
#include "runtime/system.h"

namespace accel::supervisor {

namespace {

constexpr int kBacklog = 4096;  // every rank of a large node may connect in the same moment

// The first port that needs no right: an administrator, or the maker of a container, may have changed it.
int first_open_port() {
  int port = 1024;
  const auto text = real_system().read_file("/proc/sys/net/ipv4/ip_unprivileged_port_start");
  if (text) std::from_chars(text->data(), text->data() + text->size(), port);
  return port;
}

// bind() looks at the address first: it is one of this machine.
Error forbidden(const std::string& what, std::uint16_t port) {
  const int first = first_open_port();
  if (port >= first) {
    return {
        ErrorCode::kUnsupported,
        what + errno_text(EACCES) + ": a security policy of this machine forbids it",
        "give another port with --main_process_port (--master-port), on every machine the same"};
  }
  return {ErrorCode::kUnsupported,
          what + "ports below " + std::to_string(first) +
              " need the right CAP_NET_BIND_SERVICE, which this process does not have",
          "give a port from " + std::to_string(first) +
              " on with --main_process_port (--master-port), on every machine the same"};
}

Error listen_error(const TcpEndpoint& endpoint, int error_number) {
  const std::string what = "cannot listen on " + to_text(endpoint) + ": ";
  switch (error_number) {
    case EADDRINUSE: {
      const auto holder = find_port_holder(endpoint.port());
      return {ErrorCode::kPortInUse,
              what + (holder ? "it is held by " + holder->describe() : errno_text(error_number))};
    }
    case EACCES:
      return forbidden(what, endpoint.port());
    case EADDRNOTAVAIL:
      return {ErrorCode::kInvalidArgument,
              what + "the address is not one of this machine",
              "give an address of this machine with --main_process_ip (--master-addr)"};
    default:
      if (is_exhausted(error_number))
        return exhausted_error("cannot listen on " + to_text(endpoint), error_number);
      return {ErrorCode::kInternal, what + errno_text(error_number)};
  }
}

struct Attempt {
  TcpListener listener;
  int error_number = 0;  // 0: it listens, or is bound
};

enum class Use { kListen, kReserve };

Attempt try_bind(const TcpEndpoint& wanted, Use use) {
  const auto failed = [] { return Attempt{{}, errno}; };
  UniqueFd socket(
      ::socket(wanted.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return failed();
  // Connections of the generation before may linger in TIME_WAIT under this port.
  const int yes = 1;
  if (::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) != 0) return failed();
  if (::bind(socket.get(), wanted.data(), static_cast<socklen_t>(wanted.size())) != 0) {
    return failed();
  }
  if (use == Use::kListen && ::listen(socket.get(), kBacklog) != 0) return failed();
  TcpEndpoint bound = wanted;
  auto size = static_cast<socklen_t>(bound.capacity());
  if (::getsockname(socket.get(), bound.data(), &size) != 0) return failed();
  return Attempt{{std::move(socket), bound}, 0};
}

Result<TcpListener> bind_tcp(const StorePolicy& policy, Use use) {
  boost::system::error_code not_numeric;
  const auto address = boost::asio::ip::make_address(policy.bind_address, not_numeric);
  if (not_numeric) {
    return Error(ErrorCode::kInvalidArgument,
                 "the store cannot listen on '" + policy.bind_address + "': not a numeric address",
                 "give an IPv4 or IPv6 address of this machine");
  }
  const TcpEndpoint wanted(address, policy.port);
  Attempt attempt = try_bind(wanted, use);
  if (attempt.error_number == EADDRINUSE && !policy.exact_port) {
    attempt = try_bind(TcpEndpoint(address, 0), use);
  }
  if (attempt.error_number != 0) return listen_error(wanted, attempt.error_number);
  return std::move(attempt.listener);
}

}  // namespace

Result<TcpListener> listen_tcp(const StorePolicy& policy) {
  return bind_tcp(policy, Use::kListen);
}

Result<TcpListener> reserve_tcp(const StorePolicy& policy) {
  return bind_tcp(policy, Use::kReserve);
}

}  // namespace accel::supervisor
