// TokenBucket: so many at once, and then one each `refill`: how often something may happen.
//
// Who takes more than there is owes it, and waits the longer.
//
// Threads:  a plain value.
// Cost:     O(1).
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/clock.h"

namespace accel::agent {

class TokenBucket {
 public:
  // Full at the beginning. Requires: both above 0.
  TokenBucket(std::int64_t burst, Duration refill) : refill_(refill), depth_(burst * refill) {}

  // Until a token is there; zero when one is.
  [[nodiscard]] Duration wait(TimePoint now) const {
    return std::max(Duration::zero(), full_at_ + refill_ - depth_ - now);
  }
  void take(std::int64_t count, TimePoint now) {
    full_at_ = std::max(full_at_, now) + count * refill_;
  }

 private:
  Duration refill_;
  Duration depth_;  // from empty to full
  TimePoint full_at_{};
};

}  // namespace accel::agent
