// What the supervisor does about the lease of its owner: see lease.h.

#include <algorithm>
#include <ctime>

#include "runtime/supervisor/protocol/lease.h"
#include "runtime/supervisor/shim/supervisor_impl.h"

namespace accel::supervisor {

BootTime boot_time() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

BootTime to_boot_time(TimePoint until) {
  const BootTime boot = boot_time();  // first: what passes before the next line shortens the lease
  return boot + (until - SteadyClock().now());
}

TimePoint to_steady_time(BootTime until) {
  constexpr std::chrono::hours kMost{24};  // a shim may say anything
  const TimePoint now = SteadyClock().now();
  const BootTime boot = boot_time();
  return now + (std::clamp<BootTime>(until, boot - kMost, boot + kMost) - boot);
}

void Supervisor::Impl::begin_lease(BootTime until) {
  lease_.begin(until);
  watch_lease();
}

void Supervisor::Impl::renew_lease(const RenewLease& renewal) {
  if (renewal.generation != generation_) {
    ++stale_requests_;
    return;
  }
  lease_.renew(renewal.until, boot_time());
}

void Supervisor::Impl::watch_lease() {
  lease_timer_.cancel();
  if (!lease_.is_needed()) return;
  const BootTime now = boot_time();
  if (lease_.is_over(now)) return enforce_lease();
  lease_timer_.expires_after(lease_.next_look(now));
  lease_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) watch_lease();
  });
}

void Supervisor::Impl::end_lease() {
  lease_.begin(BootTime::zero());
  lease_timer_.cancel();
}

// Sweeping kills by itself; in all other states somebody may still run, with a grace or without.
void Supervisor::Impl::enforce_lease() {
  const bool is_held = state_ == State::kChecking || state_ == State::kPrepared ||
                       state_ == State::kRunning || state_ == State::kStopping ||
                       state_ == State::kLingering;
  if (!is_held) return;
  tell("the lease of generation " + std::to_string(generation_) +
       " is over: the coordinator has not heard of this node, and its workers are killed");
  stop_generation({.generation = generation_, .mode = StopMode::kKill});
}

}  // namespace accel::supervisor
