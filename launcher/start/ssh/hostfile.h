// Hostfile: the hosts of a DeepSpeed launch and their slots, one GPU or worker each.
//
//   # a comment
//   worker-1 slots=4
//   worker-2 slots=4
//
// A filter takes hosts, or slots of them, or leaves them out: "worker-1@worker-2:0,2".
//
// Threads:  pure functions.
// Source:   the form is that of DeepSpeed's launcher (deepspeed/launcher/runner.py).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <accel/result.h>

namespace accel::launcher {

struct HostSlots {
  std::string name;
  std::vector<int> slots;  // ascending

  friend bool operator==(const HostSlots&, const HostSlots&) = default;
};

// "0,2", as CUDA_VISIBLE_DEVICES has them.
[[nodiscard]] std::string slot_list(const std::vector<int>& slots);

// In the order of the file; what follows slots=N in a line is left unread, as DeepSpeed does.
// Errors  kConfigSyntax: path, line and what is expected there; a host that is there twice; no host.
[[nodiscard]] Result<std::vector<HostSlots>> parse_hostfile(std::string_view text,
                                                            const std::string& path);

// At most one of the filters may say something; the order of the file stays.
// Errors  kInvalidArgument: both filters, a host or slot that is not in the file, nothing is left.
[[nodiscard]] Result<std::vector<HostSlots>> filter_hosts(std::vector<HostSlots> hosts,
                                                          std::string_view inclusion,
                                                          std::string_view exclusion);

}  // namespace accel::launcher
