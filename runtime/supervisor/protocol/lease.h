// LeaseClock: until when the workers of a generation may run without news from the rest of the job.
//
// With hard fencing the others start the next generation a known time after they last heard of this
// node; its workers must be dead by then, whatever became of the owner. So the owner names an instant
// up to which it vouches, and moves it on; the shim kills at the last one that it was given. An owner
// that is stopped or dead moves nothing, and what it sent too late names an instant that is past.
//
// Instants are of CLOCK_BOOTTIME: time that the machine slept counts.
//
//   begin() --renew()*--> over, for good: a later renewal brings nobody back to life
//
// Threads:  a plain value, no clock.
// Source:   docs/internals/rendezvous.md "Fencing"; tests/unit/supervisor/lease_test.cc, tests/fault/lease_test.cc.
#pragma once

#include <algorithm>
#include <chrono>

#include "runtime/clock.h"

namespace accel::supervisor {

// Time since the machine started; zero stands for no instant.
using BootTime = std::chrono::nanoseconds;

class LeaseClock {
 public:
  // How often the shim looks at the latest: its timers stand still while the machine sleeps.
  static constexpr std::chrono::milliseconds kLookEvery{500};

  // A generation begins that may run to `until`; zero: it needs no lease.
  void begin(BootTime until) {
    until_ = until;
    is_over_ = false;
  }

  // Never to an earlier instant.
  void renew(BootTime until, BootTime now) {
    if (is_needed() && !is_over(now)) until_ = std::max(until_, until);
  }

  [[nodiscard]] bool is_needed() const noexcept { return until_ != BootTime::zero(); }

  // Stays true once it was.
  [[nodiscard]] bool is_over(BootTime now) {
    is_over_ = is_over_ || (is_needed() && now >= until_);
    return is_over_;
  }

  // Requires: is_needed(), not over.
  [[nodiscard]] BootTime next_look(BootTime now) const {
    return std::min<BootTime>(until_ - now, kLookEvery);
  }

  [[nodiscard]] BootTime until() const noexcept { return until_; }

 private:
  BootTime until_{0};
  bool is_over_ = false;
};

// CLOCK_BOOTTIME now.
[[nodiscard]] BootTime boot_time();

// The same instant as `until` on the steady clock. Never later than it, should this process be stopped
// in the middle.
[[nodiscard]] BootTime to_boot_time(TimePoint until);

// The same instant as `until` on the steady clock, or a day from now, whichever is nearer. Never later either.
[[nodiscard]] TimePoint to_steady_time(BootTime until);

}  // namespace accel::supervisor
