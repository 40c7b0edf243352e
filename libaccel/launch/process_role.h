// ProcessRole: what this process is to the launchers, and whether it may launch.
//
// Threads:  any.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <accel/env_contract.h>
#include <accel/result.h>

namespace accel::launch {

// Set once in a process that a launcher started.
void become_worker();
[[nodiscard]] bool is_worker();

// libaccel says when the state of an Accelerator or PartialState begins and ends to exist.
void note_state(bool exists);
[[nodiscard]] bool has_state();

// Threads of this process (/proc/self/task).
[[nodiscard]] int count_threads();

struct LaunchSituation {
  bool is_worker = false;
  bool has_state = false;
  bool is_launching = false;  // another launch runs
};

// Errors  kUsage, with a remedy: `launcher` cannot start workers here. The environment tells of other launchers' workers.
[[nodiscard]] Result<void> check_may_launch(const LaunchSituation& situation,
                                            const EnvLookup& environment,
                                            std::string_view launcher);

}  // namespace accel::launch
