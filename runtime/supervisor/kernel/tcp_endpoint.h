// TcpEndpoint: an address with a port, as people write it and as the kernel has it.
//
// Threads:  free of state.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <boost/asio/ip/tcp.hpp>
#include <sys/socket.h>

#include <accel/result.h>

namespace accel::supervisor {

using TcpEndpoint = boost::asio::ip::tcp::endpoint;

// "10.0.0.7:29500", "[::1]:29500".
[[nodiscard]] std::string to_text(const TcpEndpoint& endpoint);

// Of such a text. Errors  kInvalidArgument: it is none, or names an interface ("fe80::1%eth0").
[[nodiscard]] Result<TcpEndpoint> parse_tcp_endpoint(std::string_view text);

// std::nullopt for another family than IPv4 and IPv6.
[[nodiscard]] std::optional<TcpEndpoint> endpoint_of(const sockaddr* address);

// The address that packets to `there` leave from; nothing is sent. Errors  kInternal: why there is no way.
[[nodiscard]] Result<boost::asio::ip::address> source_towards(const TcpEndpoint& there);

}  // namespace accel::supervisor
