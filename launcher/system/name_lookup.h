// The addresses of a host name. getaddrinfo() has no deadline: where no name server answers it takes minutes. So it is called
// through DetachedCall or call_detached(). A static program (static_program.h) asks the system's `getent`, which knows all
// that nsswitch.conf names, and where there is none reads /etc/hosts and asks DNS itself.
//
// Threads:  a resolver is called on any thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <boost/asio/ip/address.hpp>

#include <accel/result.h>

namespace accel::launcher {

// What one look-up gives; none, or an error that says why, when there is no such name.
using HostAddresses = Result<std::vector<boost::asio::ip::address>>;
using Resolver = std::function<HostAddresses(const std::string& host)>;
[[nodiscard]] Resolver system_resolver();

// Of what `getent ahosts NAME` prints: "10.0.0.7  STREAM gpu-07", and the same for other kinds of sockets. Lines that are none of
// these are left out.
[[nodiscard]] std::vector<boost::asio::ip::address> addresses_of_getent(std::string_view output);

// What an error begins with when no thread for it can be had.
inline constexpr const char* kNoLookup = "no name can be looked up";

}  // namespace accel::launcher
