#include "launcher/workers/allocation_end.h"

#include <csignal>

#include <gtest/gtest.h>

namespace accel::launcher::allocation_end_test {
namespace {

using namespace std::chrono_literals;
using supervisor::Milliseconds;

AllocationEnd ends_at(std::int64_t second) {
  return {.is_there = true, .end_seconds = second};
}

const std::chrono::system_clock::time_point kNow{std::chrono::seconds(1'000'000)};

TEST(AllocationEnd, OutsideOfSlurmTheGraceIsTheJobs) {
  EXPECT_EQ(granted_grace(90s, SIGTERM, AllocationEnd{}, kNow), 90s);
}

TEST(AllocationEnd, Fault69AfterSigtermTheFarewellFitsIntoKillWait) {
  EXPECT_EQ(granted_grace(90s, SIGTERM, ends_at(0), kNow), 25s);
  EXPECT_EQ(granted_grace(30s, SIGTERM, ends_at(1'000'500), kNow), 25s);
  EXPECT_EQ(granted_grace(10s, SIGTERM, ends_at(1'000'500), kNow), 10s);
}

TEST(AllocationEnd, Fault69AnEarlyNoticeMayUseTheTimeThatIsLeft) {
  EXPECT_EQ(granted_grace(300s, SIGUSR1, ends_at(1'000'120), kNow), 145s);
  EXPECT_EQ(granted_grace(300s, SIGHUP, ends_at(1'000'120), kNow), 145s);
  EXPECT_EQ(granted_grace(60s, SIGUSR1, ends_at(1'000'120), kNow), 60s);
}

TEST(AllocationEnd, ANoticeAfterTheEndCountsFromNow) {
  EXPECT_EQ(granted_grace(300s, SIGUSR1, ends_at(999'000), kNow), 25s);
}

TEST(AllocationEnd, WithoutAKnownEndANoticeIsNotBounded) {
  EXPECT_EQ(granted_grace(300s, SIGUSR1, ends_at(0), kNow), 300s);
}

TEST(AllocationEnd, ASiteWithAnotherKillWaitIsBelieved) {
  EXPECT_EQ(granted_grace(
                300s, SIGTERM, {.is_there = true, .end_seconds = 0, .kill_wait_seconds = 60}, kNow),
            55s);
  EXPECT_EQ(granted_grace(
                300s, SIGTERM, {.is_there = true, .end_seconds = 0, .kill_wait_seconds = 3}, kNow),
            0s);
}

TEST(AllocationEnd, CtrlCIsTheUsersOwn) {
  EXPECT_EQ(granted_grace(300s, SIGINT, ends_at(1'000'120), kNow), 300s);
}

}  // namespace
}  // namespace accel::launcher::allocation_end_test
