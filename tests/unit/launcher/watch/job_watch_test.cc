#include "launcher/watch/job_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::launcher::job_watch_test {
namespace {

using namespace std::chrono_literals;
using supervisor::ExitCause;
using supervisor::HostEvent;
using ::testing::HasSubstr;

class JobWatchTest : public ::testing::Test {
 protected:
  void hear_after(Duration time, const HostEvent& event) {
    now_ += time;
    watch_.hear(event, now_, 1000);
  }
  static supervisor::Snapshot at_step(std::uint64_t step) {
    return {.workers = {{.local_rank = 0, .is_alive = true, .beats = step, .step = step},
                        {.local_rank = 1, .is_alive = true}}};
  }
  supervisor::WorkerExit exit_of(int rank, ExitCause cause) const {
    supervisor::WorkerExit exit;
    exit.local_rank = exit.global_rank = rank;
    exit.cause = cause;
    exit.exit_code = 3;
    exit.seen_at = now_.time_since_epoch();
    return exit;
  }
  [[nodiscard]] std::string text() const {
    supervisor::MetricPage page;
    watch_.add_to(page, now_);
    return page.text();
  }

  TimePoint now_{1'000s};
  JobWatch watch_{{.job = "a", .node = "n"}, now_};
};

TEST_F(JobWatchTest, ShowsInThePageWhatTheMetricsSay) {
  hear_after(1s, supervisor::GenerationStarted{.pids = {7, 8}});
  hear_after(2s, at_step(10));
  hear_after(4s, at_step(18));

  const supervisor::DashboardJob job = watch_.shown(now_);
  ASSERT_EQ(job.ranks.size(), 2u);
  EXPECT_EQ(job.ranks[0].step, 18u);
  EXPECT_DOUBLE_EQ(job.ranks[0].seconds_per_step, 0.5);
  EXPECT_FALSE(job.ranks[1].reports);
  EXPECT_EQ(job.ledger.of(supervisor::Account::kProductive), 4s);
  EXPECT_THAT(text(), HasSubstr(R"(accel_worker_step{job="a",node="n",local_rank="0"} 18)"));
  EXPECT_THAT(text(),
              HasSubstr(R"(accel_worker_step_seconds{job="a",node="n",local_rank="0"} 0.5)"));
  EXPECT_THAT(text(), HasSubstr(R"(accel_job_time_seconds{job="a",phase="productive"} 4)"));
  EXPECT_THAT(text(), HasSubstr(R"(accel_worker_state{job="a",node="n",state="running"} 2)"));
}

TEST_F(JobWatchTest, OfSeveralMachinesRanksBeginWhereThisOneHasItsFirst) {
  watch_.place(4, 6);
  hear_after(1s, supervisor::GenerationStarted{.pids = {7, 8}});

  EXPECT_EQ(watch_.shown(now_).ranks.at(1).rank, 5);
  EXPECT_EQ(watch_.shown(now_).ranks.at(1).local_rank, 1);
  EXPECT_TRUE(watch_.runs(5));
  EXPECT_FALSE(watch_.runs(1));
  EXPECT_EQ(watch_.local_rank_of(5), 1);
  EXPECT_LT(watch_.local_rank_of(3), 0);
}

TEST_F(JobWatchTest, ARankRunsFromItsStartToItsEnd) {
  EXPECT_FALSE(watch_.runs(0));
  hear_after(1s, supervisor::GenerationStarted{.pids = {7, 8}});
  EXPECT_TRUE(watch_.runs(1));
  hear_after(1s, exit_of(1, ExitCause::kNonZero));
  EXPECT_TRUE(watch_.runs(0));
  EXPECT_FALSE(watch_.runs(1));
  EXPECT_FALSE(watch_.runs(2));
  EXPECT_FALSE(watch_.runs(-1));
}

TEST_F(JobWatchTest, ARestartIsCountedAndTheRanksBeginAnew) {
  hear_after(1s, supervisor::GenerationStarted{.pids = {7, 8}});
  hear_after(1s, exit_of(1, ExitCause::kNonZero));
  EXPECT_EQ(watch_.shown(now_).ranks[1].end, "nonzero");
  EXPECT_EQ(watch_.shown(now_).ranks[1].pid, 0);

  hear_after(
      1s, supervisor::Restarting{.next_generation = 1, .because = exit_of(1, ExitCause::kNonZero)});
  hear_after(1s, supervisor::GenerationStarted{.generation = 1, .pids = {9, 10}});

  const supervisor::DashboardJob job = watch_.shown(now_);
  EXPECT_EQ(job.generation, 1u);
  EXPECT_EQ(job.ranks[1].pid, 10);
  EXPECT_EQ(job.ranks[1].end, "");
  ASSERT_EQ(job.events.size(), 4u);
  EXPECT_EQ(job.events[1].kind, "failed");
  EXPECT_EQ(job.events[1].rank, 1);
  EXPECT_THAT(text(), HasSubstr(R"(accel_job_restarts_total{job="a",cause="nonzero"} 1)"));
}

TEST_F(JobWatchTest, AJobThatSomebodyStopsIsCancelledAndOneThatFailsFailed) {
  JobWatch failing = watch_;
  watch_.ask_to_stop(now_);
  EXPECT_EQ(watch_.shown(now_).state, "stopping");
  hear_after(1s, supervisor::JobOutcome{.exit_code = 143, .reason = "stopped by SIGTERM"});
  EXPECT_EQ(watch_.shown(now_).state, "cancelled");

  failing.hear(supervisor::JobOutcome{.first_failure = exit_of(0, ExitCause::kNonZero)}, now_, 0);
  EXPECT_EQ(failing.shown(now_).state, "failed");
}

TEST_F(JobWatchTest, AJobWhoseShimIsLostHasFailedAndItsTimeStandsStill) {
  hear_after(1s, supervisor::GenerationStarted{.pids = {7, 8}});
  hear_after(1s, exit_of(1, ExitCause::kNonZero));
  now_ += 2s;
  watch_.lose("the supervisor of the job was killed", now_, 1000);
  const supervisor::DashboardJob then = watch_.shown(now_);
  now_ += 5s;
  const supervisor::DashboardJob job = watch_.shown(now_);

  EXPECT_EQ(job.state, "failed");
  EXPECT_EQ(job.reason, "the supervisor of the job was killed");
  EXPECT_EQ(job.ranks[0].pid, 0);
  EXPECT_EQ(job.ranks[0].end, "lost");
  EXPECT_EQ(job.ranks[1].end, "nonzero");
  EXPECT_EQ(job.events.back().kind, "over");
  EXPECT_EQ(job.ledger.booked, then.ledger.booked);
  EXPECT_THAT(text(), HasSubstr(R"(accel_worker_state{job="a",node="n",state="running"} 0)"));
}

TEST_F(JobWatchTest, RanksThatItDoesNotKnowChangeNothing) {
  hear_after(1s, supervisor::GenerationStarted{.pids = {7}});
  hear_after(1s, exit_of(5, ExitCause::kNonZero));
  hear_after(1s, exit_of(-1, ExitCause::kNonZero));
  hear_after(1s,
             supervisor::Snapshot{
                 .workers = {{.local_rank = 9, .is_alive = true, .beats = 1, .step = 1}}});

  ASSERT_EQ(watch_.shown(now_).ranks.size(), 1u);
  EXPECT_EQ(watch_.shown(now_).ranks[0].pid, 7);
}

}  // namespace
}  // namespace accel::launcher::job_watch_test
