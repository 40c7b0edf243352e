// ManualClock: a clock that stands still until the test moves it.
#pragma once

#include "runtime/clock.h"

namespace accel::test {

class ManualClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const noexcept override { return now_; }
  void advance(Duration by) noexcept { now_ += by; }

 private:
  TimePoint now_{};
};

}  // namespace accel::test
