#include "launcher/start/machines/board/timing.h"

#include <algorithm>

namespace accel::launcher {
namespace {

using namespace std::chrono_literals;

constexpr Duration kMeetingTick = 50ms;
constexpr Duration kRunningTick = 150ms;
constexpr Duration kTickPerMachine = 1ms;

static_assert(kLongestTick < kLongestLook && 5 * kLongestTick < kLostAfter);

}  // namespace

Duration tick_pause(int num_machines, bool is_running) {
  const Duration pause = is_running ? kRunningTick : kMeetingTick;
  return std::min(pause + kTickPerMachine * num_machines, kLongestTick);
}

}  // namespace accel::launcher
