// The addresses of a host name. getaddrinfo() has no deadline: where no name server answers it takes minutes. So it is called
// through DetachedCall or call_detached().
//
// Threads:  a resolver is called on any thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <boost/asio/ip/address.hpp>

#include <accel/result.h>

namespace accel::launcher {

// What one look-up gives; none, or an error that says why, when there is no such name.
using HostAddresses = Result<std::vector<boost::asio::ip::address>>;
using Resolver = std::function<HostAddresses(const std::string& host)>;
[[nodiscard]] Resolver system_resolver();

// What an error begins with when no thread for it can be had.
inline constexpr const char* kNoLookup = "no name can be looked up";

}  // namespace accel::launcher
