#include "runtime/supervisor/lines/drop_ledger.h"

#include <gtest/gtest.h>

#include "tests/support/manual_clock.h"

namespace accel::supervisor::drop_ledger_test {
namespace {

using namespace std::chrono_literals;

TEST(DropMarker, StandsOnALineOfItsOwn) {
  EXPECT_EQ(drop_marker(12, true), "[accel: 12 bytes dropped]\n");
  EXPECT_EQ(drop_marker(12, false), "\n[accel: 12 bytes dropped]\n");
}

TEST(DropLedger, GivesOneNoticeInTenSeconds) {
  test::ManualClock clock;
  DropLedger ledger("stdout.log");

  EXPECT_EQ(ledger.begin("disk full", clock.now()), "stdout.log: disk full");
  clock.advance(9s);
  EXPECT_EQ(ledger.begin("disk full", clock.now()), std::nullopt);
  clock.advance(1s);
  EXPECT_TRUE(ledger.begin("disk full", clock.now()));
}

TEST(DropLedger, RetriesOnceASecond) {
  test::ManualClock clock;
  DropLedger ledger("stdout.log");
  ledger.begin("disk full", clock.now());

  EXPECT_FALSE(ledger.should_retry(clock.now() + 999ms));
  EXPECT_TRUE(ledger.should_retry(clock.now() + 1s));
}

TEST(DropLedger, SaysAtTheEndHowMuchWasLost) {
  test::ManualClock clock;
  DropLedger ledger("stdout.log");
  ledger.begin("disk full", clock.now());
  ledger.drop(40);
  ledger.drop(2);

  EXPECT_EQ(ledger.end(clock.now()), "stdout.log: 42 bytes were dropped");
  EXPECT_FALSE(ledger.is_dropping());
  EXPECT_EQ(ledger.dropped(), 0U);
  EXPECT_EQ(ledger.last_words(), std::nullopt);
}

TEST(DropLedger, AddsUpWhatItKeptQuietAbout) {
  test::ManualClock clock;
  DropLedger ledger("stdout.log");
  for (int i = 0; i < 3; ++i) {
    ledger.begin("slow", clock.now());
    ledger.drop(10);
    EXPECT_EQ(ledger.end(clock.now()).has_value(), i == 0);
  }

  EXPECT_EQ(ledger.last_words(), "stdout.log: 20 bytes were dropped");
}

class StallWatchTest : public ::testing::Test {
 protected:
  bool observe(std::uint64_t progress, bool is_wanted) {
    return watch_.observe(progress, is_wanted, clock_.now());
  }

  test::ManualClock clock_;
  StallWatch watch_{2'000ms};
};

TEST_F(StallWatchTest, ASinkThatMovesALittleIsNotStalled) {
  for (std::uint64_t progress = 0; progress < 10; ++progress) {
    EXPECT_FALSE(observe(progress, true));
    clock_.advance(1'900ms);
  }
}

TEST_F(StallWatchTest, ASinkThatNobodyNeedsIsNotStalled) {
  observe(1, false);
  clock_.advance(1h);

  EXPECT_FALSE(observe(1, false));
  EXPECT_FALSE(observe(1, true));
}

TEST_F(StallWatchTest, NoMovementForTheLimitIsAStall) {
  observe(1, true);
  observe(1, true);
  clock_.advance(1'999ms);
  EXPECT_FALSE(observe(1, true));
  clock_.advance(1ms);

  EXPECT_TRUE(observe(1, true));
}

TEST_F(StallWatchTest, AStallLastsUntilTheSinkMoves) {
  observe(1, true);
  observe(1, true);
  clock_.advance(2s);
  observe(1, true);

  EXPECT_TRUE(observe(1, false));
  EXPECT_FALSE(observe(2, true));
}

}  // namespace
}  // namespace accel::supervisor::drop_ledger_test
