// MachineWish: what flags and file say about several machines, before it is checked.
//
// Threads:  pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/faults.h"
#include "launcher/flags.h"
#include "launcher/static/static_settings.h"

namespace accel::launcher {

struct MachineWish {
  int num_machines = 1;
  std::optional<int> rank;
  std::optional<std::string> address;
  std::optional<int> port;
  std::optional<std::string> file_backend;  // rdzv_backend of a configuration file
  bool is_simple = true;                    // no GPU paradigm: the peer wants a port then, too
};

// Empty: a launch on one machine, or a fault. Faults (kUsage, kInvalidArgument) are added; what a user
// should know goes to `notices`.
[[nodiscard]] std::optional<StaticSettings> choose_machines(const MachineWish& wish,
                                                            const CommandLine& line,
                                                            std::vector<std::string>& notices,
                                                            Faults& faults);

}  // namespace accel::launcher
