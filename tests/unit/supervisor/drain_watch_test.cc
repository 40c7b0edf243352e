#include "runtime/supervisor/logs/drain_watch.h"

#include <gtest/gtest.h>

namespace accel::supervisor::drain_watch_test {
namespace {

using namespace std::chrono_literals;
using Verdict = DrainWatch::Verdict;

constexpr TimePoint kStart{1h};

TEST(DrainWatch, EndsWhenAllIsWritten) {
  DrainWatch watch(3s, kStart);

  EXPECT_EQ(watch.observe(false, 10, kStart), Verdict::kWait);
  EXPECT_EQ(watch.observe(true, 20, kStart + 1s), Verdict::kDone);
}

TEST(DrainWatch, WaitsForeverForASinkThatMoves) {
  DrainWatch watch(3s, kStart);

  for (int second = 0; second < 1'000; second += 2) {
    const auto progress = static_cast<std::uint64_t>(second + 1);
    ASSERT_EQ(watch.observe(false, progress, kStart + second * 1s), Verdict::kWait);
  }
}

TEST(DrainWatch, GivesUpOnceNothingHasMovedForTheStandstill) {
  DrainWatch watch(3s, kStart);

  EXPECT_EQ(watch.observe(false, 5, kStart + 2s), Verdict::kWait);
  EXPECT_EQ(watch.observe(false, 5, kStart + 4999ms), Verdict::kWait);
  EXPECT_EQ(watch.observe(false, 5, kStart + 5s), Verdict::kGiveUp);
}

TEST(DrainWatch, InAHurryItGivesUpOnASinkThatMoves) {
  DrainWatch watch(3s, kStart);
  watch.hurry(kStart + 1s);

  EXPECT_EQ(watch.observe(false, 1, kStart + 1s), Verdict::kWait);
  EXPECT_EQ(watch.next(kStart + 1s + 195ms), kStart + 1s + DrainWatch::kHurry);
  EXPECT_EQ(watch.observe(false, 2, kStart + 1s + DrainWatch::kHurry), Verdict::kGiveUp);
  EXPECT_TRUE(watch.is_hurried());
}

TEST(DrainWatch, AskingAgainDoesNotPutTheEndOff) {
  DrainWatch watch(3s, kStart);
  watch.hurry(kStart);
  watch.hurry(kStart + 150ms);

  EXPECT_EQ(watch.observe(false, 1, kStart + DrainWatch::kHurry), Verdict::kGiveUp);
}

}  // namespace
}  // namespace accel::supervisor::drain_watch_test
