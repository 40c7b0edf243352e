// MachinesRequest: what flags and file say about several machines, before it is checked.
//
// Threads:  pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/flags/flags.h"
#include "launcher/start/machines/settings/machines_settings.h"
#include "launcher/text/faults.h"

namespace accel::launcher {

struct MachinesRequest {
  int num_machines = 1;
  std::optional<int> rank;
  std::optional<std::string> address;
  std::optional<int> port;
  std::optional<std::string> backend;  // rdzv_backend: the flag, else that of a configuration file
  bool is_simple = true;               // no GPU strategy: the peer wants a port then, too
};

// "HOST:PORT" of "HOST" or "HOST:PORT": etcd's own port, 2379, unless there is one.
[[nodiscard]] std::string etcd_endpoint(std::string text);

// Empty: a launch on one machine, or a fault. Faults (kUsage, kInvalidArgument) are added; what a user
// should know goes to `notices`.
[[nodiscard]] std::optional<MachinesSettings> choose_machines(const MachinesRequest& request,
                                                              const CommandLine& line,
                                                              std::vector<std::string>& notices,
                                                              Faults& faults);

}  // namespace accel::launcher
