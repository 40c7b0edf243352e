// RefusalLog: lines about refused callers, so many that a log file survives whoever knocks all day.
//
// A bucket of kBurst lines that fills again at one line a second. What is left out is counted and told with the next
// line that passes, so that nothing is silent.
//
// Threads:  one thread.
// Cost:     O(1).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "agent/access/token_bucket.h"
#include "runtime/clock.h"

namespace accel::agent {

class RefusalLog {
 public:
  static constexpr int kBurst = 20;

  explicit RefusalLog(const Clock& clock) : clock_(clock) {}

  // `line` as it is to be written, or nothing when too many came.
  [[nodiscard]] std::optional<std::string> admit(std::string line);

 private:
  const Clock& clock_;
  TokenBucket lines_{kBurst, std::chrono::seconds(1)};
  std::uint64_t num_left_out_ = 0;
};

}  // namespace accel::agent
