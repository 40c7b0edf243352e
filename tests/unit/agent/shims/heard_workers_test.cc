#include "agent/shims/heard_workers.h"

#include <gtest/gtest.h>

namespace accel::agent::heard_workers_test {
namespace {

using namespace std::chrono_literals;

TEST(HeardWorkers, ShowsTheStepsOfWorkersThatReportAndIgnoresRanksThatTheJobHasNot) {
  v1::Job job;
  job.add_workers();
  job.add_workers();
  supervisor::JobCounters counters;
  supervisor::DurationTotals totals;
  supervisor::Snapshot snapshot;
  snapshot.workers = {{.local_rank = 1, .is_alive = true, .beats = 3, .step = 41},
                      {.local_rank = 2, .is_alive = true, .beats = 3, .step = 99},
                      {.local_rank = -1, .is_alive = true, .beats = 3, .step = 99}};
  counters.hear(snapshot, TimePoint(1'000s), totals);
  show_steps(job, counters);

  EXPECT_FALSE(job.workers(0).has_step());
  EXPECT_EQ(job.workers(1).step(), 41U);
  EXPECT_FALSE(job.workers(1).has_step_seconds());  // after one look

  snapshot.workers[0].step = 45;
  counters.hear(snapshot, TimePoint(1'002s), totals);
  show_steps(job, counters);

  EXPECT_EQ(job.workers(1).step(), 45U);
  EXPECT_EQ(job.workers(1).step_seconds(), 0.5);
  ASSERT_EQ(job.workers_size(), 2);
}

}  // namespace
}  // namespace accel::agent::heard_workers_test
