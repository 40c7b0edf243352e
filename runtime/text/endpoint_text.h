// EndpointText: where something listens, as people write it.
//
// Threads:  pure.
#pragma once

#include <optional>
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

struct EndpointParts {
  std::string_view host;  // an IPv6 address with its brackets
  std::optional<std::string_view> port;
};
// "gpu-01" and "29400" of "gpu-01:29400"; no port of "gpu-01" and "[fe80::1]". What they are is not looked at.
[[nodiscard]] inline EndpointParts split_endpoint(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || text.find(']', colon) != std::string_view::npos)
    return {text, std::nullopt};
  return {text.substr(0, colon), text.substr(colon + 1)};
}

// A host that means this machine alone, as people write it.
[[nodiscard]] inline bool is_loopback_name(std::string_view host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

}  // namespace accel
