// WallClock: the time of day, for texts and files alone: decisions take clock.h's.
//
// Threads:  any.
#pragma once

#include <chrono>

namespace accel {

// Since 1970, in seconds.
[[nodiscard]] inline double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace accel
