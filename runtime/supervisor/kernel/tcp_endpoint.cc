#include "runtime/supervisor/kernel/tcp_endpoint.h"

#include <cerrno>
#include <cstring>

#include <netinet/in.h>

#include "runtime/text/endpoint_text.h"
#include "runtime/text/number_text.h"
#include "runtime/unique_fd.h"

namespace accel::supervisor {

namespace ip = boost::asio::ip;

std::string to_text(const TcpEndpoint& endpoint) {
  return endpoint_text(endpoint.address().to_string(), endpoint.port());
}

Result<TcpEndpoint> parse_tcp_endpoint(std::string_view text) {
  const auto [host, port_text] = split_endpoint(text);
  const auto port = number_of<std::uint16_t>(port_text.value_or(""));
  const std::string bare = without_brackets(host);
  boost::system::error_code not_numeric;
  const auto address = ip::make_address(bare, not_numeric);
  const bool has_brackets = bare.size() != host.size();
  if (!port || not_numeric || address.is_v6() != has_brackets ||
      bare.find('%') != std::string::npos) {
    return Error(ErrorCode::kInvalidArgument,
                 "'" + std::string(text) + "' is not a numeric ADDR:PORT",
                 "give an address of this machine, as 10.0.0.7:29400 or [::1]:29400");
  }
  return TcpEndpoint(address, *port);
}

std::optional<TcpEndpoint> endpoint_of(const sockaddr* address) {
  const bool is_v4 = address->sa_family == AF_INET;
  if (!is_v4 && address->sa_family != AF_INET6) return std::nullopt;
  TcpEndpoint endpoint;
  const std::size_t size = is_v4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::memcpy(endpoint.data(), address, size);
  endpoint.resize(size);
  return endpoint;
}

// connect() of a datagram socket only asks the kernel for the route.
Result<ip::address> source_towards(const TcpEndpoint& there) {
  const UniqueFd socket(::socket(there.protocol().family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  TcpEndpoint here;
  auto size = static_cast<socklen_t>(here.capacity());
  if (!socket || ::connect(socket.get(), there.data(), static_cast<socklen_t>(there.size())) != 0 ||
      ::getsockname(socket.get(), here.data(), &size) != 0) {
    return Error(ErrorCode::kInternal, errno_text(errno));
  }
  return here.address();
}

}  // namespace accel::supervisor
