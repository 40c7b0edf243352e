// StopWait: for whom a stop waits, in the words that a user reads who has pressed Ctrl-C.
//
// Threads:  a plain value.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "runtime/clock.h"
#include "runtime/supervisor/protocol/job_outcome.h"

namespace accel::supervisor {

struct StopWait {
  std::vector<int> ranks;             // global ranks that still run
  std::vector<Leftover> descendants;  // what ranks that have ended left running
  Duration left{};                    // until SIGKILL
  std::chrono::system_clock::time_point until;
  bool is_interrupt = false;  // a Ctrl-C, not another signal
};

// "waiting until 14:05:31 (29 s) for ranks 0, 1: then they are killed; another Ctrl-C kills them now". At most eight
// ranks and four processes are named. The time is that of the local clock.
[[nodiscard]] std::string describe(const StopWait& wait);

}  // namespace accel::supervisor
