#include "launcher/workers/allocation_end.h"

#include <algorithm>
#include <csignal>

namespace accel::launcher {

supervisor::Milliseconds granted_grace(supervisor::Milliseconds asked,
                                       int signal,
                                       const AllocationEnd& end,
                                       std::chrono::system_clock::time_point now) {
  if (!end.is_there || signal == SIGINT) return asked;
  const bool is_notice = signal == SIGUSR1 || signal == SIGHUP;
  if (is_notice && end.end_seconds == 0) return asked;
  std::int64_t seconds_left = std::max<std::int64_t>(0, end.kill_wait_seconds - kFarewell.count());
  if (is_notice) {
    const auto now_seconds = std::chrono::floor<std::chrono::seconds>(now.time_since_epoch());
    seconds_left += std::max<std::int64_t>(0, end.end_seconds - now_seconds.count());
  }
  return std::min(asked, supervisor::Milliseconds(seconds_left * 1'000));
}

}  // namespace accel::launcher
