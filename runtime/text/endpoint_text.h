// EndpointText: where something listens, as people write it.
//
// Threads:  pure.
#pragma once

#include <string>
#include <string_view>

namespace accel {

// A host as it stands before ":PORT": "[fe80::1]" of the IPv6 address fe80::1; names and IPv4 addresses as they are.
[[nodiscard]] inline std::string host_in_endpoint(const std::string& host) {
  return host.find(':') != std::string::npos ? "[" + host + "]" : host;
}

// "10.0.0.7:41233", "[::1]:5".
[[nodiscard]] inline std::string endpoint_text(const std::string& host, int port) {
  return host_in_endpoint(host) + ":" + std::to_string(port);
}

// "::1" of "[::1]".
[[nodiscard]] inline std::string without_brackets(std::string_view host) {
  const bool has_both = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return std::string(has_both ? host.substr(1, host.size() - 2) : host);
}

}  // namespace accel
