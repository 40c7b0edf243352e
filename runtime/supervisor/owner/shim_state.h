// ShimState: the file by which an owner finds a shim that outlived the owner before it.
//
// A shim whose policy is to hold writes it into the folder that its owner gave, when it starts, and
// removes it when it ends. Two lines of text:
//
//   accel-shim-state <version> <xxh3-64 of the second line, 16 hex digits>
//   {"job_id": ..., "pid": ..., "start_time": ..., "boot_id": ..., "socket": ..., ...}
//
// A process number alone names nothing: it counts only together with the start time and the boot.
//
// Threads:  functions without state.
// Source:   docs/internals/supervision.md "Owners that come back"; tests/unit/supervisor/shim_state_test.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <accel/result.h>

#include "runtime/system.h"
#include "runtime/unique_fd.h"

namespace accel::supervisor {

struct ShimState {
  static constexpr int kVersion = 1;

  std::string job_id;
  std::string node_id;
  std::string instance;  // empty: written by a build that knew none
  std::string build;
  std::int64_t protocol = 0;
  std::int64_t pid = 0;
  std::uint64_t start_time = 0;  // clock ticks since boot
  std::string boot_id;
  std::string socket;  // name beside the state file
};

// Names in the folder.
[[nodiscard]] std::string state_file_name(const std::string& job_id);
[[nodiscard]] std::string socket_name(const std::string& job_id);

// Opens `folder` for the calls below.
// Errors  kShimState: it is no folder, a link, of another user, or open to others (not 0700).
[[nodiscard]] Result<UniqueFd> open_runtime_folder(const std::string& folder);

// Replaces the file in one step. Errors  kShimState with the errno.
[[nodiscard]] Result<void> write_shim_state(int folder, const ShimState& state);

// Errors  kShimState: there is no such file, or it is too big, of another version (both are named),
//         cut short, changed, or lacks a member. Nothing of it is used then.
[[nodiscard]] Result<ShimState> read_shim_state(const std::string& path);

// The state of the calling process; `boot_id` and start time come from /proc.
[[nodiscard]] ShimState own_state(System& system);

// Whether the process of `state` is the one that wrote it and still runs.
[[nodiscard]] bool is_running(System& system, const ShimState& state);

// The jobs of this node that have a process, by the ACCEL_JOB_ID and ACCEL_NODE_ID in the
// environment of each; for those that no state file names.
[[nodiscard]] std::vector<std::string> find_jobs_of_node(System& system,
                                                         const std::string& node_id);

}  // namespace accel::supervisor
