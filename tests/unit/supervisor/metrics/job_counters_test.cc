#include "runtime/supervisor/metrics/job_counters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::supervisor::job_counters_test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

class JobCountersTest : public ::testing::Test {
 protected:
  void hear_after(Duration time, const HostEvent& event) {
    now_ += time;
    counters_.hear(event, now_, totals_);
  }
  // Seen by the shim `ago` before.
  [[nodiscard]] WorkerExit exit_of(int rank, ExitCause cause, Duration ago = 0s) const {
    WorkerExit exit;
    exit.local_rank = rank;
    exit.cause = cause;
    exit.seen_at = (now_ - ago).time_since_epoch();
    return exit;
  }

  TimePoint now_{1'000s};
  JobCounters counters_;
  DurationTotals totals_;
};

TEST_F(JobCountersTest, MeasuresAStartUntilAllWorkersRun) {
  counters_.begin(now_);
  hear_after(20ms, GenerationStarted{.generation = 0, .pids = {5, 6}});

  EXPECT_EQ(counters_.starts(), 2U);
  EXPECT_EQ(totals_.start.count(), 1U);
  EXPECT_DOUBLE_EQ(totals_.start.sum(), 0.02);
}

TEST_F(JobCountersTest, MeasuresStopAndRestartFromTheMomentAtWhichTheWorkerEnded) {
  counters_.begin(now_);
  hear_after(0s, GenerationStarted{.generation = 0, .pids = {5, 6}});
  const auto first = exit_of(0, ExitCause::kSignaled, 1s);
  hear_after(0s, first);
  hear_after(1s, exit_of(1, ExitCause::kStoppedByUs));
  hear_after(0s, Restarting{.next_generation = 1, .delay = 3s, .because = first});
  hear_after(4s, GenerationStarted{.generation = 1, .pids = {7, 8}});

  EXPECT_THAT(counters_.exits(),
              ElementsAre(Pair(ExitCause::kSignaled, 1), Pair(ExitCause::kStoppedByUs, 1)));
  EXPECT_THAT(counters_.restarts(), ElementsAre(Pair(ExitCause::kSignaled, 1)));
  EXPECT_DOUBLE_EQ(totals_.stop.sum(), 2.0);
  EXPECT_DOUBLE_EQ(totals_.restart.sum(), 6.0);
  EXPECT_DOUBLE_EQ(totals_.start.sum(), 1.0);  // the back-off is not part of it
  EXPECT_EQ(counters_.starts(), 4U);
}

TEST_F(JobCountersTest, AJobThatEndsWellStopsNothing) {
  hear_after(0s, GenerationStarted{.generation = 0, .pids = {5}});
  hear_after(1s, exit_of(0, ExitCause::kOk));
  hear_after(0s, JobOutcome{.success = true});

  EXPECT_EQ(totals_.stop.count(), 0U);
}

TEST_F(JobCountersTest, MeasuresTheStopThatSomebodyAskedFor) {
  hear_after(0s, GenerationStarted{.generation = 0, .pids = {5}});
  counters_.ask_to_stop(now_);
  hear_after(2s, exit_of(0, ExitCause::kStoppedByUs));
  hear_after(0s, JobOutcome{});

  EXPECT_DOUBLE_EQ(totals_.stop.sum(), 2.0);
}

TEST_F(JobCountersTest, ShowsWorkersThatReportUntilTheyEnd) {
  Snapshot snapshot;
  snapshot.workers = {{.local_rank = 0,
                       .is_alive = true,
                       .beats = 3,
                       .step = 41,
                       .silent_for = 200ms,
                       .times = {.steps = 40, .total_ns = 5}},
                      {.local_rank = 1, .is_alive = true},  // reports nothing
                      {.local_rank = 2, .beats = 3, .step = 5}};
  hear_after(0s, snapshot);
  ASSERT_EQ(counters_.sights().size(), 1U);
  EXPECT_EQ(counters_.sights()[0].step, 41U);
  EXPECT_EQ(counters_.sights()[0].beat_at, now_ - 200ms);
  EXPECT_EQ(counters_.sights()[0].times.steps, 40U);

  hear_after(0s, exit_of(0, ExitCause::kNonZero));
  EXPECT_THAT(counters_.sights(), IsEmpty());
}

TEST_F(JobCountersTest, MeasuresTheSilenceOfAHang) {
  hear_after(0s, Hung{.silent_for = 30s, .limit = 30s});

  EXPECT_DOUBLE_EQ(totals_.hang_detection.sum(), 30.0);
}

TEST(CauseLabel, IsThereForEveryCause) {
  EXPECT_EQ(label_of(ExitCause::kOk), "ok");
  EXPECT_EQ(label_of(ExitCause::kOutOfMemory), "oom");
  EXPECT_EQ(label_of(ExitCause::kHang), "hang");
}

}  // namespace
}  // namespace accel::supervisor::job_counters_test
