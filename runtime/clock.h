// Clock: where the supervisor's decisions get the time from, so that a test can turn it by hand.
//
// Only monotonic time takes part in decisions; the wall clock appears in texts alone.
//
// Threads:  now() may be called from any thread.
#pragma once

#include <chrono>

namespace accel {

using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;

class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual TimePoint now() const noexcept = 0;
};

class SteadyClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const noexcept override { return std::chrono::steady_clock::now(); }
};

}  // namespace accel
