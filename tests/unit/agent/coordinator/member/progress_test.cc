#include "agent/coordinator/member/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/supervisor/watch/step_comparison.h"

namespace accel::agent::progress_test {
namespace {

using namespace std::chrono_literals;
using supervisor::Snapshot;
using supervisor::StepComparison;
using supervisor::WorkerSnapshot;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

WorkerSnapshot worker(int rank, std::uint64_t beats, std::uint64_t step, Milliseconds silent) {
  return {.local_rank = rank,
          .global_rank = 10 + rank,
          .pid = 100 + rank,
          .is_alive = true,
          .beats = beats,
          .step = step,
          .silent_for = silent};
}

TEST(ProgressWatch, TellsWhereTheRanksStand) {
  ProgressWatch watch;
  Snapshot snapshot;
  snapshot.workers = {worker(0, 5, 7, 300ms), worker(1, 0, 0, 0ms), worker(2, 4, 9, 100ms)};
  snapshot.workers.push_back(worker(3, 9, 1, 0ms));
  snapshot.workers.back().is_alive = false;

  const StepsMade made = watch.observe("job", 3, snapshot);

  EXPECT_EQ(made.generation, 3u);
  EXPECT_EQ(made.min_step, 7);
  EXPECT_EQ(made.max_step, 9);
  EXPECT_EQ(made.last_progress_age, 100ms);
  ASSERT_THAT(made.ranks, SizeIs(4));
  EXPECT_EQ(made.ranks[0].step, 7);
  EXPECT_EQ(made.ranks[1].step, -1);
  EXPECT_EQ(made.ranks[3].step, -1);
  EXPECT_THAT(made.stalled_ranks, IsEmpty());
}

TEST(ProgressWatch, NamesTheRankThatStoppedFirstBeforeThoseThatWaitForIt) {
  ProgressWatch watch;
  Snapshot snapshot;
  snapshot.workers = {worker(0, 5, 8, 6s), worker(1, 4, 7, 6'100ms), worker(2, 5, 8, 6'200ms)};

  EXPECT_THAT(watch.observe("job", 1, snapshot).stalled_ranks, ElementsAre(11, 12, 10));
}

TEST(ProgressWatch, ARankIsAsPatientlyJudgedAsItsStepsAreLong) {
  ProgressWatch watch;
  Snapshot snapshot;
  snapshot.workers = {worker(0, 1, 1, 20s)};
  (void)watch.observe("job", 1, snapshot);
  snapshot.workers = {worker(0, 2, 2, 0ms)};  // a step of 20 s ended
  EXPECT_THAT(watch.observe("job", 1, snapshot).stalled_ranks, IsEmpty());
  snapshot.workers = {worker(0, 2, 2, 60s)};
  EXPECT_THAT(watch.observe("job", 1, snapshot).stalled_ranks, IsEmpty());
  snapshot.workers = {worker(0, 2, 2, 61s)};
  EXPECT_THAT(watch.observe("job", 1, snapshot).stalled_ranks, ElementsAre(10));
  watch.restart();
  EXPECT_THAT(watch.observe("job", 2, snapshot).stalled_ranks, ElementsAre(10));
}

TEST(StepComparison, RanksThatAreSeenAtTheirOwnTimesAreComparedByTheirOwnTimes) {
  StepComparison comparison;
  TimePoint now{};
  comparison.restart(now);
  std::vector<supervisor::SlowRank> slow;
  for (int second = 0; second <= 60; ++second) {
    for (int rank = 0; rank < 4; ++rank) {
      // 100 steps a second, rank 2 a fifth fewer; the nodes' beats come at different times.
      const TimePoint at = now + rank * 200ms;
      const auto ms = std::chrono::duration_cast<Milliseconds>(at.time_since_epoch()).count();
      comparison.see(rank, static_cast<std::uint64_t>(rank == 2 ? ms / 12 : ms / 10), at);
    }
    now += 1s;
    for (const auto& one : comparison.compare(now)) slow.push_back(one);
  }
  ASSERT_THAT(slow, SizeIs(1));
  EXPECT_EQ(slow[0].global_rank, 2);
  EXPECT_NEAR(static_cast<double>(slow[0].step_time / 1us), 12'000, 200);
}

}  // namespace
}  // namespace accel::agent::progress_test
