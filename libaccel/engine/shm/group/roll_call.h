// RollCall: who has not come to a monitored barrier, and what is said of it.
//
// Threads:  values and pure functions.
#pragma once

#include <chrono>
#include <span>
#include <string>

#include <accel/error.h>

namespace accel::shm {

// Whether a monitored barrier ends when it is known that one rank will not come, or hears all others out.
enum class RollCall { kUntilFirstLoss, kOfAll };

struct Absent {
  int rank = 0;     // as errors call it
  std::string why;  // "has died"; empty: nothing is known of it
};

// kPeerLost: "of 4 ranks these have not come to a monitored barrier within 500 ms: rank 1 (has died), rank 3".
[[nodiscard]] Error error_of(std::span<const Absent> absent,
                             int world_size,
                             std::chrono::milliseconds waited);

}  // namespace accel::shm
