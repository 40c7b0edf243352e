#include "runtime/supervisor/watch/hang_clock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::supervisor::hang_clock_test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class HangClockTest : public ::testing::Test {
 protected:
  HangClockTest() { clock_.restart(now_); }

  // Ranks 0 .. n-1 each report `beats` at step `beats`.
  std::vector<RankReport> reports(int num_ranks, std::uint64_t beats) const {
    std::vector<RankReport> all;
    for (int rank = 0; rank < num_ranks; ++rank) {
      all.push_back({.global_rank = rank, .beats = beats, .step = beats});
    }
    return all;
  }

  std::optional<Hang> after(Duration time, const std::vector<RankReport>& seen) {
    now_ += time;
    return clock_.observe(now_, seen);
  }

  // 20 steps of 10 s each.
  void warm_up(int num_ranks) {
    for (std::uint64_t beat = 1; beat <= 20; ++beat) {
      ASSERT_FALSE(after(10s, reports(num_ranks, beat)));
    }
  }

  TimePoint now_{1000s};
  HangClock clock_{{.mode = HangMode::kAuto}};
};

TEST_F(HangClockTest, WorkersThatNeverReportAreNeverJudged) {
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(after(1h, reports(2, 0)));
}

TEST_F(HangClockTest, TheLimitFollowsTheStepsAndHasAFloor) {
  EXPECT_EQ(clock_.limit(), Duration(600s));
  warm_up(2);
  EXPECT_EQ(clock_.limit(), Duration(30s));

  for (std::uint64_t beat = 21; beat <= 24; ++beat) (void)after(25s, reports(2, beat));

  EXPECT_EQ(clock_.limit(), Duration(75s));
}

TEST_F(HangClockTest, SeveralBeatsBetweenTwoLooksAreShorterIntervals) {
  for (std::uint64_t beat = 100; beat <= 2000; beat += 100) (void)after(50s, reports(1, beat));

  EXPECT_EQ(clock_.limit(), Duration(30s));
}

TEST_F(HangClockTest, Fault6SilenceBeyondTheLimitIsAHang) {
  warm_up(2);

  EXPECT_FALSE(after(30s, reports(2, 20)));
  const auto hang = after(1s, reports(2, 20));

  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->silent_for, Duration(31s));
  EXPECT_EQ(hang->limit, Duration(30s));
  EXPECT_THAT(hang->silent_ranks, ElementsAre(0, 1));
}

TEST_F(HangClockTest, Fault6TheRankOfTheLowestStepStoppedFirst) {
  warm_up(3);
  auto seen = reports(3, 21);
  seen[1] = {.global_rank = 1, .beats = 20, .step = 20};
  EXPECT_FALSE(after(5s, seen));  // ranks 0 and 2 make one step more and wait for rank 1

  const auto hang = after(26s, seen);

  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->global_rank, 1);
  EXPECT_EQ(hang->step, 20u);
  EXPECT_THAT(hang->silent_ranks, ElementsAre(0, 1, 2));
}

TEST_F(HangClockTest, OfEqualStepsTheLongestSilenceCounts) {
  warm_up(2);
  auto seen = reports(2, 20);
  seen[0].beats = 21;  // rank 0 still reported once in the same step
  EXPECT_FALSE(after(4s, seen));

  const auto hang = after(40s, seen);

  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->global_rank, 1);
}

TEST_F(HangClockTest, Fault7NobodyHangsWhileAWorkerIsStopped) {
  warm_up(2);
  auto seen = reports(2, 20);
  seen[1].is_stopped = true;
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(after(10s, seen));

  seen[1].is_stopped = false;
  EXPECT_FALSE(after(30s, seen));
  EXPECT_TRUE(after(1s, seen));
}

TEST_F(HangClockTest, TimeOfASuspendedJobDoesNotCount) {
  warm_up(1);
  clock_.suspend(now_);
  EXPECT_FALSE(after(2h, reports(1, 20)));
  clock_.resume(now_);

  EXPECT_FALSE(after(30s, reports(1, 20)));
  EXPECT_TRUE(after(1s, reports(1, 20)));
}

TEST_F(HangClockTest, ARankThatSavesHasMoreTime) {
  warm_up(1);
  auto seen = reports(1, 21);
  seen[0].is_training = false;

  EXPECT_FALSE(after(1s, seen));
  EXPECT_FALSE(after(600s, seen));
  EXPECT_TRUE(after(1s, seen));
}

TEST_F(HangClockTest, AStepAcrossASaveDoesNotStretchTheLimit) {
  warm_up(1);
  auto seen = reports(1, 21);
  seen[0].is_training = false;
  (void)after(1s, seen);
  (void)after(500s, reports(1, 22));

  EXPECT_EQ(clock_.limit(), Duration(30s));
}

TEST_F(HangClockTest, ARankThatIsSilentWhileOthersReportIsJudgedByTheFirstBeat) {
  auto seen = reports(2, 1);
  seen[1] = {.global_rank = 1};
  EXPECT_FALSE(after(1s, seen));
  for (std::uint64_t beat = 2; beat <= 61; ++beat) {
    seen[0].beats = seen[0].step = beat;
    EXPECT_FALSE(after(10s, seen));
  }
  seen[0].beats = seen[0].step = 62;

  const auto hang = after(10s, seen);

  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->global_rank, 1);
}

TEST_F(HangClockTest, AFixedLimitNeedsNoHistory) {
  HangClock fixed({.mode = HangMode::kFixed, .timeout = 5s});
  fixed.restart(now_);
  EXPECT_FALSE(fixed.observe(now_ + 100s, reports(1, 1)));
  EXPECT_FALSE(fixed.observe(now_ + 105s, reports(1, 1)));
  EXPECT_TRUE(fixed.observe(now_ + 106s, reports(1, 1)));
}

TEST_F(HangClockTest, AWorkerThatEndedIsNotSilent) {
  warm_up(2);

  auto seen = reports(2, 20);
  seen.pop_back();
  for (std::uint64_t beat = 21; beat < 40; ++beat) {
    seen[0].beats = seen[0].step = beat;
    EXPECT_FALSE(after(20s, seen));
  }
}

TEST_F(HangClockTest, ANewGenerationBeginsAnew) {
  warm_up(2);
  clock_.restart(now_);

  EXPECT_EQ(clock_.limit(), Duration(600s));
  EXPECT_FALSE(after(100s, reports(2, 0)));
}

TEST_F(HangClockTest, Fault46ARankTenPercentSlowerIsNamedOnceWithinFiveWindows) {
  std::vector<SlowRank> named;
  for (int second = 1; second <= 100; ++second) {
    std::vector<RankReport> seen;
    for (int rank = 0; rank < 4; ++rank) {
      const auto steps = static_cast<std::uint64_t>(rank == 2 ? second * 8 : second * 10);
      seen.push_back({.global_rank = rank, .beats = steps, .step = steps});
    }
    EXPECT_FALSE(after(1s, seen));
    for (const SlowRank& slow : clock_.take_slow_ranks()) named.push_back(slow);
    if (second == 50) {
      EXPECT_THAT(named, SizeIs(1));
    }
  }

  ASSERT_THAT(named, SizeIs(1));
  EXPECT_EQ(named[0].global_rank, 2);
  EXPECT_GT(named[0].score, 3.5);
  EXPECT_GT(named[0].step_time, named[0].median);
}

TEST_F(HangClockTest, RanksThatAreAlikeAreNoStragglers) {
  for (int second = 1; second <= 100; ++second) {
    std::vector<RankReport> seen;
    for (int rank = 0; rank < 4; ++rank) {
      const auto steps = static_cast<std::uint64_t>(second * 100 + rank);
      seen.push_back({.global_rank = rank, .beats = steps, .step = steps});
    }
    EXPECT_FALSE(after(1s, seen));
  }
  EXPECT_THAT(clock_.take_slow_ranks(), IsEmpty());
}

}  // namespace
}  // namespace accel::supervisor::hang_clock_test
