// How often launchers of several machines look.

#include "launcher/start/machines/board/timing.h"

#include <gtest/gtest.h>

namespace accel::launcher::timing_test {
namespace {

using namespace std::chrono_literals;

TEST(TickPause, GrowsWithTheNumberOfMachines) {
  EXPECT_EQ(tick_pause(2, false), 52ms);
  EXPECT_EQ(tick_pause(2, true), 152ms);
  EXPECT_EQ(tick_pause(500, true), 650ms);
}

TEST(TickPause, IsCappedSoThatALossIsNoticedAsSoonAsWithFewMachines) {
  for (const bool is_running : {false, true}) {
    EXPECT_EQ(tick_pause(1'000, is_running), kLongestTick);
    EXPECT_EQ(tick_pause(1'000'000, is_running), kLongestTick);
  }
}

}  // namespace
}  // namespace accel::launcher::timing_test
