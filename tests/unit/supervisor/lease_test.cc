#include "runtime/supervisor/protocol/lease.h"

#include <gtest/gtest.h>

namespace accel::supervisor::lease_test {
namespace {

using namespace std::chrono_literals;

TEST(LeaseClock, AGenerationWithoutALeaseIsNeverOver) {
  LeaseClock lease;
  EXPECT_FALSE(lease.is_needed());
  EXPECT_FALSE(lease.is_over(BootTime::max()));
  lease.begin(BootTime::zero());
  lease.renew(100s, 1s);
  EXPECT_FALSE(lease.is_needed());
}

TEST(LeaseClock, IsOverAtItsInstantAndNotBefore) {
  LeaseClock lease;
  lease.begin(100s);
  EXPECT_FALSE(lease.is_over(100s - 1ns));
  EXPECT_TRUE(lease.is_over(100s));
}

TEST(LeaseClock, RenewalMovesTheEndAndNeverBack) {
  LeaseClock lease;
  lease.begin(100s);
  lease.renew(110s, 99s);
  lease.renew(105s, 99s);
  EXPECT_EQ(lease.until(), 110s);
  EXPECT_FALSE(lease.is_over(109s));
}

TEST(LeaseClock, Fault38ARenewalThatComesTooLateBringsNobodyBackToLife) {
  LeaseClock lease;
  lease.begin(100s);
  lease.renew(110s, 100s);
  EXPECT_TRUE(lease.is_over(100s));
  // What was over stays so, whatever the clock says.
  lease.renew(110s, 90s);
  EXPECT_TRUE(lease.is_over(90s));
  lease.begin(120s);
  EXPECT_FALSE(lease.is_over(110s));
}

TEST(LeaseClock, LooksInTimeAndOftenEnoughForAMachineThatSlept) {
  LeaseClock lease;
  lease.begin(100s);
  EXPECT_EQ(lease.next_look(99s + 900ms), 100ms);
  EXPECT_EQ(lease.next_look(10s), LeaseClock::kLookEvery);
}

TEST(LeaseClock, AnInstantBeforeTheMachineStartedIsPast) {
  LeaseClock lease;
  lease.begin(-1s);
  EXPECT_TRUE(lease.is_over(1s));
}

TEST(BootTime, AnInstantOfTheSteadyClockIsNeverMovedBack) {
  const BootTime before = boot_time();
  const BootTime moved = to_boot_time(SteadyClock().now() + 10s);
  EXPECT_LE(moved, boot_time() + 10s);
  EXPECT_GT(moved, before);
}

}  // namespace
}  // namespace accel::supervisor::lease_test
