// ProcessTable: what /proc says about the processes of this machine, at one moment.
//
// Threads:  plain values and functions without state.
// Cost:     one scan reads one small file per process (about 10 us each).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include <sys/types.h>

#include "runtime/system.h"

namespace accel::supervisor {

struct ProcessEntry {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t group = 0;
  pid_t session = 0;
  char state = '?';              // 'Z' zombie, 'D' uninterruptible, 'T' stopped, ...
  bool is_exiting = false;       // its memory and with it its environment may be gone already
  std::uint64_t start_time = 0;  // clock ticks since boot; with the pid it names a process for ever
};

// Reads the content of /proc/PID/stat; std::nullopt when it is not of that form.
[[nodiscard]] std::optional<ProcessEntry> parse_stat(std::string_view stat);

// The entry of `pid`, std::nullopt when it is gone.
[[nodiscard]] std::optional<ProcessEntry> read_process(System& system, pid_t pid);

// Every process but those in `except`.
[[nodiscard]] std::vector<ProcessEntry> read_process_table(
    System& system, const std::unordered_set<pid_t>& except = {});

// The value of `name` in an environment block as in /proc/PID/environ.
[[nodiscard]] std::optional<std::string> find_in_environ(std::string_view environ,
                                                         std::string_view name);

// The command line with spaces between the arguments, or "[comm]" of a process without one, or in state D: its command
// line could not be read without waiting with it. At most `limit` bytes.
[[nodiscard]] std::string read_command(System& system,
                                       const ProcessEntry& process,
                                       std::size_t limit = 200);

}  // namespace accel::supervisor
