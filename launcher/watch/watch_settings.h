// WatchSettings: where a launcher shows its job while it runs.
//
// Threads:  pure functions.
#pragma once

#include <optional>
#include <string>

#include "launcher/flags/flags.h"
#include "launcher/text/faults.h"
#include "runtime/supervisor/kernel/tcp_endpoint.h"

namespace accel::launcher {

struct WatchSettings {
  std::optional<supervisor::TcpEndpoint> metrics;  // of /metrics and /healthz; port 0: any free one

  std::optional<supervisor::TcpEndpoint> dashboard;  // of the page; port 0: any free one
  std::string tracking_dir;                          // whose curves it draws; empty: none

  [[nodiscard]] bool is_any() const { return metrics.has_value() || dashboard.has_value(); }
};

// Faults (kInvalidArgument, kUsage) are added: among them an address beyond loopback that nobody has allowed.
[[nodiscard]] WatchSettings choose_watch(const CommandLine& line, Faults& faults);

}  // namespace accel::launcher
