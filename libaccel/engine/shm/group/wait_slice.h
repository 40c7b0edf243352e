// WaitSlice: how long who waits sleeps at once, before it looks around again.
//
// Threads:  a pure function.
#pragma once

#include <algorithm>
#include <chrono>

namespace accel::shm {

// `at_most`, but not beyond the deadline, which is in `left`: by less than 1 ms. At least 1 ms, so that what is there is
// found also after the deadline. Requires: at_most >= 1 ms.
template <typename Duration>
[[nodiscard]] std::chrono::milliseconds wait_slice(std::chrono::milliseconds at_most,
                                                   Duration left) {
  constexpr std::chrono::milliseconds kLeast{1};
  if (left >= at_most) return at_most;
  return std::max(kLeast, std::chrono::ceil<std::chrono::milliseconds>(left));
}

}  // namespace accel::shm
