// DrainWatch: how long the last output of a job is waited for, once no worker is left.
//
//   waiting --all written--------------------------------------> kDone
//           --no sink has moved for `standstill`---------------> kGiveUp
//           --hurry(): somebody wants to leave; kHurry later---> kGiveUp
//
// A slow sink that moves is waited for as long as it takes: it loses nothing. A user who asks to stop
// while only output remains gets what can be written in kHurry, and a notice of the rest.
//
// Threads:  a plain value; the caller observes whenever something may have changed, and at next().
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "runtime/clock.h"

namespace accel::supervisor {

class DrainWatch {
 public:
  static constexpr std::chrono::milliseconds kHurry{200};

  enum class Verdict { kWait, kDone, kGiveUp };

  DrainWatch(Duration standstill, TimePoint now) : standstill_(standstill), moved_at_(now) {}

  // progress  grows with every byte that a sink has taken or given up.
  [[nodiscard]] Verdict observe(bool is_done, std::uint64_t progress, TimePoint now) noexcept {
    if (is_done) return Verdict::kDone;
    if (progress != progress_) {
      progress_ = progress;
      moved_at_ = now;
    }
    const bool is_over = now - moved_at_ >= standstill_ || now >= end_;
    return is_over ? Verdict::kGiveUp : Verdict::kWait;
  }

  // Gives up at `end` in any case.
  void end_by(TimePoint end) noexcept { end_ = std::min(end_, end); }

  void hurry(TimePoint now) noexcept {
    is_hurried_ = true;
    end_by(now + kHurry);
  }
  [[nodiscard]] bool is_hurried() const noexcept { return is_hurried_; }

  // When to observe() again if nothing is heard before: progress comes without a word.
  [[nodiscard]] TimePoint next(TimePoint now) const noexcept {
    constexpr std::chrono::milliseconds kLookEvery{20};
    return std::min(now + kLookEvery, end_);
  }

 private:
  Duration standstill_;
  TimePoint moved_at_;
  TimePoint end_ = TimePoint::max();
  std::uint64_t progress_ = 0;
  bool is_hurried_ = false;
};

}  // namespace accel::supervisor
