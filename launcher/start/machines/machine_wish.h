// MachineWish: what flags and file say about several machines, before it is checked.
//
// Threads:  pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/flags/flags.h"
#include "launcher/start/machines/static_settings.h"
#include "launcher/text/faults.h"

namespace accel::launcher {

struct MachineWish {
  int num_machines = 1;
  std::optional<int> rank;
  std::optional<std::string> address;
  std::optional<int> port;
  std::optional<std::string> backend;  // rdzv_backend: the flag, else that of a configuration file
  bool is_simple = true;               // no GPU paradigm: the peer wants a port then, too
};

// "::1" of "[::1]", as in addresses with a port.
[[nodiscard]] std::string without_brackets(std::string_view address);

// Empty: a launch on one machine, or a fault. Faults (kUsage, kInvalidArgument) are added; what a user
// should know goes to `notices`.
[[nodiscard]] std::optional<StaticSettings> choose_machines(const MachineWish& wish,
                                                            const CommandLine& line,
                                                            std::vector<std::string>& notices,
                                                            Faults& faults);

}  // namespace accel::launcher
