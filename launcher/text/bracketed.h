// Bracketed: a host as it stands before ":PORT".
//
// Threads:  pure.
#pragma once

#include <string>

namespace accel::launcher {

// "[fe80::1]" of the IPv6 address fe80::1; names and IPv4 addresses as they are.
[[nodiscard]] inline std::string bracketed(const std::string& host) {
  return host.find(':') != std::string::npos ? "[" + host + "]" : host;
}

}  // namespace accel::launcher
