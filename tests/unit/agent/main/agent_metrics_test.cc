#include "agent/main/agent_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::agent::agent_metrics_test {
namespace {

using namespace std::chrono_literals;
using supervisor::MetricPage;
using ::testing::HasSubstr;

Job job_with(const char* id, JobPhase phase) {
  Job job;
  auto description = std::make_shared<JobDescription>();
  description->job_id = id;
  job.description = std::move(description);
  job.phase = phase;
  return job;
}

TEST(CoordinatorMetrics, CountsEachNodeOnce) {
  const TimePoint now{1000s};
  State state;
  state.epoch = 7;
  state.nodes["live"].liveness = Liveness::kLive;
  state.nodes["suspect"].liveness = Liveness::kSuspect;
  state.nodes["drained"].liveness = Liveness::kSuspect;
  state.nodes["drained"].is_drained = true;
  state.nodes["aside"].liveness = Liveness::kLive;
  state.nodes["aside"].quarantine.until = now + 1s;
  state.nodes["was aside"].liveness = Liveness::kLive;
  state.nodes["was aside"].quarantine.until = now;
  state.nodes["lost"].is_drained = true;
  MetricPage page;
  add_coordinator(page, state, now);

  const std::string text = page.text();
  EXPECT_THAT(text, HasSubstr("accel_leader_epoch 7\n"));
  EXPECT_THAT(text, HasSubstr("accel_rendezvous_nodes{state=\"live\"} 2\n"));
  for (const char* one : {"suspect", "drained", "quarantined", "lost"})
    EXPECT_THAT(text, HasSubstr(std::string("accel_rendezvous_nodes{state=\"") + one + "\"} 1\n"));
}

TEST(CoordinatorMetrics, TellsWhereTheTimeOfJobsWentAndWhyTheyBeganAnew) {
  const TimePoint now{1000s};
  State state;
  Job& job = state.jobs["u1"] = job_with("train", JobPhase::kRunning);
  job.generation = 3;
  job.ledger.booked[static_cast<std::size_t>(Account::kStop)] = 25s;
  job.ledger.open = Account::kProductive;
  job.ledger.since = now - 75s;
  job.restarts_by_cause[supervisor::ExitCause::kLost] = 2;
  state.jobs["u2"] = job_with("waits", JobPhase::kGathering);
  state.dropped.old_beat = 9;
  MetricPage page;
  add_coordinator(page, state, now);

  const std::string text = page.text();
  EXPECT_THAT(text, HasSubstr("accel_rendezvous_generation{job=\"train\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("accel_job_time_seconds{job=\"train\",phase=\"productive\"} 75\n"));
  EXPECT_THAT(text, HasSubstr("accel_job_time_seconds{job=\"train\",phase=\"stop\"} 25\n"));
  EXPECT_THAT(text, HasSubstr("accel_job_effective_training_ratio{job=\"train\"} 0.75\n"));
  EXPECT_THAT(text, HasSubstr("accel_job_restarts_total{job=\"train\",cause=\"lost\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("accel_coordinator_jobs{state=\"running\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("accel_coordinator_jobs{state=\"gathering\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("accel_coordinator_jobs{state=\"failed\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("accel_rendezvous_stale_messages_total{type=\"old_beat\"} 9\n"));
}

}  // namespace
}  // namespace accel::agent::agent_metrics_test
