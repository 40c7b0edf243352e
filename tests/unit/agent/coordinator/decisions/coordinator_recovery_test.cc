// The rules of coordinator.h, one by one: what steps tell, and a coordinator that takes over.

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/coordinator/decisions/coordinator.h"
#include "tests/support/virtual_cluster.h"
#include "tests/unit/agent/coordinator/decisions/coordinator_cases.h"

namespace accel::agent::coordinator_recovery_test {
namespace {

using namespace std::chrono_literals;
using test::ClusterOptions;
using test::MoveKind;
using test::VirtualCluster;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// ---- steps ----

// What the ranks of a node report: two a node.
void report_steps(VirtualCluster& cluster, int node, std::vector<RankProgress> ranks) {
  StepsMade made;
  made.job_uuid = kJob;
  made.generation = cluster.node(node).workers.generation;
  made.min_step = std::min(ranks[0].step, ranks[1].step);
  made.max_step = std::max(ranks[0].step, ranks[1].step);
  made.ranks = std::move(ranks);
  cluster.tell_node(node, made);
}

void hang(VirtualCluster& cluster, int node, int local_rank, std::int64_t step) {
  supervisor::WorkerExit exit;
  exit.global_rank = cluster.node(node).workers.first_rank + local_rank;
  exit.local_rank = local_rank;
  exit.cause = supervisor::ExitCause::kHang;
  exit.detail = "no progress for 31 s after step " + std::to_string(step) + ", limit 30 s";
  exit.seen_at = cluster.now().time_since_epoch();
  cluster.node(node).workers.phase = test::Workers::Phase::kNone;
  cluster.tell_node(node, WorkerExited{kJob, cluster.node(node).workers.generation, step, exit});
}

ClusterOptions long_job() {
  ClusterOptions options = options_of(3, 2, 3);
  options.work = Milliseconds(3'600'000);
  return options;
}

TEST(CoordinatorSteps, Fault6TheRankThatStoppedFirstIsTheFailureWhicheverNodeNoticed) {
  VirtualCluster cluster(long_job());
  cluster.settle();
  report_steps(cluster, 0, {{41, 30s}, {41, 30s}});
  report_steps(cluster, 1, {{41, 30s}, {40, 31s}});
  report_steps(cluster, 2, {{41, 30s}, {41, 30s}});
  cluster.run_for(2s);

  hang(cluster, 0, 1, 41);
  cluster.settle();

  ASSERT_TRUE(cluster.job()->last_failure || cluster.job()->stop.failure);
  const Failure failure =
      cluster.job()->last_failure ? *cluster.job()->last_failure : *cluster.job()->stop.failure;
  EXPECT_EQ(failure.node_id, "n1");
  EXPECT_EQ(failure.global_rank, 3);
  EXPECT_EQ(failure.step, 40);
  EXPECT_THAT(failure.text, HasSubstr("rank 3 on host-1 stopped first, at step 40"));
  EXPECT_THAT(failure.text, HasSubstr("rank 1 on host-0 hangs: no progress for 31 s"));
}

TEST(CoordinatorSteps, Fault6AHangOfTheRankThatStoppedFirstIsToldAsItWasNoticed) {
  VirtualCluster cluster(long_job());
  cluster.settle();
  report_steps(cluster, 0, {{41, 30s}, {40, 31s}});
  report_steps(cluster, 1, {{41, 30s}, {41, 30s}});
  cluster.run_for(2s);

  hang(cluster, 0, 1, 40);
  cluster.settle();

  const Failure failure =
      cluster.job()->last_failure ? *cluster.job()->last_failure : *cluster.job()->stop.failure;
  EXPECT_EQ(failure.global_rank, 1);
  EXPECT_THAT(failure.text,
              HasSubstr("rank 1 on host-0 hangs: no progress for 31 s after step 40"));
}

TEST(CoordinatorSteps, Fault46ARankThatIsSlowerThanThoseOfOtherNodesIsNamedWithinFiveWindows) {
  VirtualCluster cluster(long_job());
  cluster.settle();
  cluster.keeps_reports = true;
  std::int64_t steps = 0;
  const auto is_told = [&] {
    return std::any_of(cluster.reports().begin(), cluster.reports().end(), [](const auto& text) {
      return text.find("rank 5 is ") == 0 && text.find("slower") != std::string::npos;
    });
  };
  for (int second = 0; second < 50 && !is_told(); ++second) {
    steps += 100;
    for (int node = 0; node < 3; ++node) {
      report_steps(cluster, node, {{steps, 0s}, {node == 2 ? steps * 4 / 5 : steps, 0s}});
    }
    cluster.run_for(1s);
  }
  EXPECT_TRUE(is_told());
}

TEST(CoordinatorSteps, TheNodeThatWasReadyLastIsNamed) {
  VirtualCluster cluster(long_job());
  cluster.settle();
  EXPECT_EQ(cluster.job()->text, "3 nodes, the last one (host-2) ready after 0.2 s");
}

// ---- recovery ----

// What was said about a generation that left no record is said again to the next coordinator.
TEST(CoordinatorRecovery, ANumberThatAgentsHaveSeenIsNotUsedAgain) {
  ClusterOptions options = options_of(3, 3, 3);
  options.job.fence.fencing = Fencing::kHard;
  VirtualCluster cluster(options);
  while (cluster.phase() != JobPhase::kPreparing) cluster.apply(cluster.moves(1).front());
  cluster.apply({MoveKind::kDeliverDown, 2, static_cast<int>(cluster.node(2).down.size()) - 1});
  ASSERT_EQ(cluster.node(2).workers.generation, 1u);
  cluster.apply({MoveKind::kCrashCoordinator});
  cluster.advance_by(30s);  // the lease is over: the node drops its part, and cannot say so yet
  cluster.apply({MoveKind::kStartCoordinator});

  cluster.keeps_sent = true;
  cluster.run_for(10s);

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  for (const auto& [connection, message] : cluster.sent()) {
    const bool is_assign = std::holds_alternative<Assign>(message.body);
    EXPECT_TRUE(!is_assign || message.fence.generation == 2u);
  }
}

TEST(CoordinatorRecovery, Fault35ARunningJobIsNotDisturbed) {
  VirtualCluster cluster(options_of(3, 2, 3));
  cluster.settle();
  cluster.run_for(5s);

  cluster.apply({MoveKind::kCrashCoordinator});
  cluster.run_for(10s);
  cluster.apply({MoveKind::kStartCoordinator});
  cluster.run_for(30s);

  EXPECT_EQ(cluster.state().epoch, 2u);
  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_EQ(cluster.job()->generation, 1u);
  EXPECT_EQ(cluster.node(2).workers.phase, test::Workers::Phase::kRunning);
  EXPECT_EQ(cluster.violation(), "");
}

TEST(CoordinatorRecovery, Fault45ANodeThatWasPutAsideStaysSoWithTheNextCoordinator) {
  ClusterOptions options = options_of(3, 2, 3);
  options.job.restart.budget.max_restarts = 10;
  VirtualCluster cluster(options);
  cluster.settle();
  for (int i = 0; i < 3; ++i) {
    cluster.apply({MoveKind::kCrashNode, 2});
    cluster.run_for(6s);
    cluster.apply({MoveKind::kStartNode, 2});
    cluster.run_for(6s);
  }

  cluster.apply({MoveKind::kCrashCoordinator});
  cluster.apply({MoveKind::kStartCoordinator});
  cluster.run_for(10s);
  exit_rank(cluster, 0, supervisor::ExitCause::kNonZero);
  cluster.run_for(20s);

  EXPECT_THAT(seats(cluster), ElementsAre("n0", "n1"));
}

TEST(CoordinatorRecovery, ANodeThatDiedMeanwhileIsLostAfterTheRebuildWindow) {
  VirtualCluster cluster(options_of(3, 2, 3));
  cluster.settle();
  cluster.apply({MoveKind::kCrashCoordinator});
  cluster.apply({MoveKind::kCrashNode, 2});

  cluster.apply({MoveKind::kStartCoordinator});
  cluster.run_for(15s);

  EXPECT_EQ(cluster.job()->generation, 2u);
  EXPECT_THAT(seats(cluster), ElementsAre("n0", "n1"));
}

TEST(CoordinatorRecovery, ACommitThatWasWrittenIsCarriedOut) {
  VirtualCluster cluster(options_of(2, 2, 2));
  while (!(cluster.job() && cluster.job()->commit_ticket)) {
    cluster.apply(cluster.moves(1).front());
  }
  cluster.apply({MoveKind::kWrite});

  cluster.apply({MoveKind::kCrashCoordinator});
  cluster.apply({MoveKind::kStartCoordinator});
  cluster.run_for(5s);

  EXPECT_EQ(cluster.job()->generation, 1u);
  EXPECT_EQ(cluster.node(0).workers.phase, test::Workers::Phase::kRunning);
  EXPECT_EQ(cluster.node(1).workers.phase, test::Workers::Phase::kRunning);
}

TEST(CoordinatorRecovery, ACommitThatWasNotWrittenStartsNothing) {
  VirtualCluster cluster(options_of(2, 2, 2));
  while (!(cluster.job() && cluster.job()->commit_ticket)) {
    cluster.apply(cluster.moves(1).front());
  }

  cluster.apply({MoveKind::kCrashCoordinator});
  cluster.apply({MoveKind::kStartCoordinator});
  cluster.run_for(5s);

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_EQ(cluster.job()->generation, 2u);
  EXPECT_EQ(cluster.violation(), "");
}

TEST(CoordinatorRecovery, Fault59AFullDiskRefusesNewJobsAndKeepsRunningOnes) {
  VirtualCluster cluster(options_of(2, 2, 2));
  cluster.settle();
  cluster.set_disk_full(true);
  JobDescription second = test::small_job(1, 1);
  second.job_uuid = "job-2";

  cluster.tell(StartJob{"request-2", second});
  cluster.settle();
  EXPECT_THAT(cluster.reports(), Contains(HasSubstr("reply refused")));
  EXPECT_THAT(cluster.reports(), Contains(HasSubstr("new jobs are refused, running ones kept")));
  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  exit_rank(cluster, 0, supervisor::ExitCause::kNonZero);
  cluster.run_for(20s);
  EXPECT_EQ(cluster.phase(), JobPhase::kPreparing);  // the commit cannot be written
  cluster.set_disk_full(false);
  cluster.run_for(6s);

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_THAT(cluster.reports(), Contains(HasSubstr("can be written again")));
}

TEST(CoordinatorRecovery, TheNextCoordinatorKnowsWhichJobIsTheNewerOne) {
  VirtualCluster cluster(options_of(2, 2, 2));
  cluster.settle();
  JobDescription later = test::small_job(1, 1);
  later.job_uuid = "a";  // before the other one by its uuid
  cluster.tell(StartJob{"request-a", later});
  cluster.settle();
  const auto order_of = [&](const char* uuid) { return cluster.state().jobs.at(uuid).order; };
  const std::uint64_t first = cluster.job()->order;
  ASSERT_LT(first, order_of("a"));

  cluster.apply({MoveKind::kCrashCoordinator});
  cluster.apply({MoveKind::kStartCoordinator});
  EXPECT_EQ(cluster.job()->order, first);
  JobDescription latest = test::small_job(1, 1);
  latest.job_uuid = "0";
  cluster.tell(StartJob{"request-0", latest});

  EXPECT_LT(order_of("a"), order_of("0"));
}

// Its coordinator died, or was deposed, while the job was being written down: nobody was told what became of it.
TEST(CoordinatorRecovery, AJobThatIsSubmittedAgainToTheNextCoordinatorIsThereOnce) {
  for (const bool was_written : {false, true}) {
    VirtualCluster cluster(options_of(2, 2, 2));
    cluster.settle();
    JobDescription second = test::small_job(1, 1);
    second.job_uuid = "job-2";
    second.job_id = "named";
    second.recruits = true;
    cluster.tell(StartJob{"request-2", second});
    ASSERT_EQ(cluster.state().jobs.at("job-2").phase, JobPhase::kPending);
    if (was_written) cluster.apply({MoveKind::kWrite});

    cluster.apply({MoveKind::kCrashCoordinator});
    cluster.apply({MoveKind::kStartCoordinator});
    EXPECT_EQ(cluster.state().jobs.count("job-2"), was_written ? 1U : 0U);
    const std::size_t num_said = cluster.reports().size();
    cluster.tell(StartJob{"request-2", second});
    cluster.run_for(5s);

    EXPECT_EQ(cluster.state().jobs.size(), 2U);
    EXPECT_NE(cluster.state().jobs.at("job-2").phase, JobPhase::kPending);
    const std::vector<std::string> said(cluster.reports().begin() + num_said,
                                        cluster.reports().end());
    EXPECT_THAT(said, Contains(HasSubstr("reply accepted")));
  }
}

// As that of another launcher, when the host of a job by etcd is gone.
void change_to_one_without_records(VirtualCluster& cluster) {
  cluster.apply({MoveKind::kCrashCoordinator});
  cluster.lose_records();
  cluster.apply({MoveKind::kStartCoordinator});
  cluster.run_for(20s);
}

TEST(CoordinatorRecovery, ACoordinatorWithoutRecordsGoesOnWithTheNextGenerationAndCountsARestart) {
  VirtualCluster cluster(options_of(3, 2, 3));
  cluster.settle();
  ASSERT_EQ(cluster.phase(), JobPhase::kRunning);

  change_to_one_without_records(cluster);
  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_EQ(cluster.job()->generation, 2u);
  EXPECT_EQ(cluster.job()->history.total(), 1);

  change_to_one_without_records(cluster);
  EXPECT_EQ(cluster.job()->generation, 3u);
  EXPECT_EQ(cluster.job()->history.total(), 2);
  EXPECT_EQ(cluster.violation(), "");
}

TEST(CoordinatorRecovery, AGenerationThatWasStoppedForANodeThatLeftCostsTheNextCoordinatorNothing) {
  VirtualCluster cluster(options_of(3, 2, 3));
  cluster.settle();
  cluster.tell(DrainNode{"n0", "its launcher ends"});
  cluster.settle();
  ASSERT_EQ(cluster.phase(), JobPhase::kGathering);
  cluster.node(0).is_cut = true;

  change_to_one_without_records(cluster);

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_EQ(cluster.job()->generation, 2u);
  EXPECT_EQ(cluster.job()->history.total(), 0);
}

// A job with one restart, which has begun again once because a rank ran out of memory.
VirtualCluster with_memory_restart() {
  VirtualCluster cluster(options_of(3, 2, 3));
  cluster.settle();
  exit_rank(cluster, 1, supervisor::ExitCause::kOutOfMemory);
  cluster.run_for(5s);
  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_EQ(cluster.job()->generation, 2u);
  EXPECT_EQ(cluster.job()->history.out_of_memory, 1);
  return cluster;
}

TEST(CoordinatorRecovery, ARestartForLackOfMemoryLeavesTheRestartForTheLossOfACoordinator) {
  VirtualCluster cluster = with_memory_restart();
  const Join known = cluster.node(2).member.jobs.at(kJob).join;
  EXPECT_EQ(known.restarts, 1);  // that which the loss costs: no more than the job has
  EXPECT_EQ(known.out_of_memory, 1);

  change_to_one_without_records(cluster);

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_EQ(cluster.job()->generation, 3u);
  EXPECT_EQ(cluster.job()->history.restarts, 1);
  EXPECT_EQ(cluster.job()->history.out_of_memory, 1);
}

TEST(CoordinatorRecovery, ARestartForLackOfMemoryIsCountedAsSuchByTheNextCoordinator) {
  VirtualCluster cluster = with_memory_restart();
  cluster.tell(DrainNode{"n0", "its launcher ends"});
  cluster.settle();
  cluster.node(0).is_cut = true;
  change_to_one_without_records(cluster);
  EXPECT_EQ(cluster.job()->history.restarts, 0);
  EXPECT_EQ(cluster.job()->history.out_of_memory, 1);

  exit_rank(cluster, 1, supervisor::ExitCause::kNonZero);
  cluster.run_for(20s);
  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);  // by the one restart that was left

  exit_rank(cluster, 1, supervisor::ExitCause::kOutOfMemory);
  cluster.run_for(20s);
  EXPECT_EQ(cluster.phase(), JobPhase::kFailed);
}

TEST(CoordinatorRecovery, DrainedNodesStayDrained) {
  VirtualCluster cluster(options_of(3, 2, 3));
  cluster.settle();
  cluster.tell(DrainNode{"n1", "new memory"});
  cluster.run_for(5s);

  cluster.apply({MoveKind::kCrashCoordinator});
  cluster.apply({MoveKind::kStartCoordinator});
  cluster.run_for(5s);

  EXPECT_TRUE(cluster.state().nodes.at("n1").is_drained);
  EXPECT_EQ(cluster.state().nodes.at("n1").drain_reason, "new memory");
}

TEST(CoordinatorRecovery, AnEpochThatIsNotHigherIsRefused) {
  const Step first = found(7, {}, TimePoint{});
  const auto& persist = std::get<Persist>(first.actions.at(0));

  const auto again = recover({persist.record}, 7, {}, TimePoint{});

  ASSERT_FALSE(again);
  EXPECT_THAT(again.error().message(), HasSubstr("7 is not higher than 7"));
  EXPECT_EQ(recorded_epoch({persist.record}), 7u);
}

}  // namespace
}  // namespace accel::agent::coordinator_recovery_test
