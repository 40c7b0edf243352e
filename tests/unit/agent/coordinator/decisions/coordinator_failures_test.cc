// The rules of coordinator.h, one by one: nodes that are lost, ranks that fail, and what follows.

#include <algorithm>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/coordinator/decisions/coordinator.h"
#include "tests/support/virtual_cluster.h"
#include "tests/unit/agent/coordinator/decisions/coordinator_cases.h"

namespace accel::agent::coordinator_failures_test {
namespace {

using namespace std::chrono_literals;
using test::ClusterOptions;
using test::MoveKind;
using test::VirtualCluster;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// ---- losses ----

TEST(CoordinatorLosses, Fault37ASilentNodeIsSuspectThenLostAndTheOthersGoOn) {
  VirtualCluster cluster(options_of(3, 2, 3));
  cluster.settle();
  const TimePoint cut_at = cluster.now();

  cluster.apply({MoveKind::kCrashNode, 2});
  cluster.run_for(2'600ms);
  EXPECT_EQ(cluster.state().nodes.at("n2").liveness, Liveness::kSuspect);
  while (cluster.state().nodes.at("n2").liveness != Liveness::kLost) cluster.run_for(100ms);
  EXPECT_LE(cluster.now() - cut_at, 5s);
  cluster.run_for(5s);

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_THAT(seats(cluster), ElementsAre("n0", "n1"));
  EXPECT_EQ(cluster.job()->history.restarts, 1);
  EXPECT_EQ(cluster.violation(), "");
}

TEST(CoordinatorLosses, ABrokenConnectionIsALossAfterItsWindow) {
  VirtualCluster cluster(options_of(3, 2, 3));
  cluster.settle();

  cluster.apply({MoveKind::kCrashAgent, 2});
  cluster.run_for(190ms);
  EXPECT_EQ(cluster.state().nodes.at("n2").liveness, Liveness::kSuspect);
  cluster.run_for(20ms);

  EXPECT_EQ(cluster.state().nodes.at("n2").liveness, Liveness::kLost);
}

TEST(CoordinatorLosses, Fault27AnAgentThatComesBackInItsWindowFindsItsJobUndisturbed) {
  VirtualCluster cluster(options_of(3, 2, 3));
  for (int i = 0; i < 3; ++i) {
    cluster.node(i).info.readopt_window = 4s;
    cluster.node(i).member.node = cluster.node(i).info;
  }
  cluster.settle();

  cluster.apply({MoveKind::kCrashAgent, 1});
  cluster.run_for(2s);
  cluster.apply({MoveKind::kStartAgent, 1});
  cluster.run_for(30s);

  EXPECT_EQ(cluster.job()->generation, 1u);
  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_EQ(cluster.node(1).workers.phase, test::Workers::Phase::kRunning);
}

TEST(CoordinatorLosses, AnAgentThatComesBackWithoutItsWorkersFailsTheGeneration) {
  VirtualCluster cluster(options_of(3, 2, 3));
  for (int i = 0; i < 3; ++i) {
    cluster.node(i).info.readopt_window = 4s;
    cluster.node(i).member.node = cluster.node(i).info;
  }
  cluster.settle();

  cluster.apply({MoveKind::kCrashAgent, 1});
  cluster.settle();
  cluster.node(1).workers = {};
  cluster.apply({MoveKind::kStartAgent, 1});
  cluster.run_for(5s);

  EXPECT_EQ(cluster.job()->generation, 2u);
  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_EQ(cluster.job()->members.size(), 3u);
}

TEST(CoordinatorLosses, Fault58LossesAtOnceAreOneChange) {
  VirtualCluster cluster(options_of(6, 2, 6));
  cluster.settle();
  cluster.run_for(700ms);  // so that their last beats differ

  for (const int node : {1, 3, 5}) cluster.apply({MoveKind::kCrashNode, node});
  cluster.run_for(15s);

  EXPECT_EQ(cluster.job()->generation, 2u);
  EXPECT_THAT(seats(cluster), ElementsAre("n0", "n2", "n4"));
  EXPECT_EQ(cluster.job()->history.restarts, 1);
}

TEST(CoordinatorLosses, AReplacementTakesTheHoleAndNobodyElseMoves) {
  VirtualCluster cluster = with_nodes_up(options_of(4, 3, 3), 3);
  connect(cluster, 3);  // parked
  ASSERT_EQ(cluster.phase(), JobPhase::kRunning);

  cluster.apply({MoveKind::kCrashNode, 1});
  cluster.run_for(8s);

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_THAT(seats(cluster), ElementsAre("n0", "n3", "n2"));
}

TEST(CoordinatorLosses, Fault57AllNodesLostWaitsForRegroupThenFails) {
  ClusterOptions options = options_of(2, 2, 2);
  options.job.restart.regroup_timeout = 100s;
  VirtualCluster cluster(options);
  cluster.settle();

  cluster.apply({MoveKind::kCrashNode, 0});
  cluster.apply({MoveKind::kCrashNode, 1});
  cluster.run_for(20s);
  EXPECT_EQ(cluster.phase(), JobPhase::kSuspended);
  cluster.run_for(100s);

  EXPECT_EQ(cluster.phase(), JobPhase::kFailed);
  EXPECT_THAT(cluster.job()->text, HasSubstr("too few nodes for 100 s"));
}

TEST(CoordinatorLosses, NodesThatComeBackWithinTheRegroupTimeoutGoOn) {
  VirtualCluster cluster(options_of(2, 2, 2));
  cluster.settle();
  cluster.apply({MoveKind::kCrashNode, 0});
  cluster.apply({MoveKind::kCrashNode, 1});
  cluster.run_for(20s);

  cluster.mend();
  cluster.run_for(5s);

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_EQ(cluster.job()->generation, 2u);
}

TEST(CoordinatorLosses, Fault45AFlappingNodeIsPutAside) {
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

  EXPECT_THAT(cluster.reports(), Contains(HasSubstr("lost 3 times within 10 minutes")));
  exit_rank(cluster, 0, supervisor::ExitCause::kNonZero);
  cluster.run_for(20s);
  EXPECT_THAT(seats(cluster), ElementsAre("n0", "n1"));
}

TEST(CoordinatorLosses, Fault39AHealedNodeIsFencedAndComesBackAsAFreshOne) {
  VirtualCluster cluster(options_of(3, 2, 3));
  cluster.settle();
  cluster.node(2).is_cut = true;
  cluster.run_for(20s);
  ASSERT_THAT(seats(cluster), ElementsAre("n0", "n1"));
  ASSERT_EQ(cluster.node(2).workers.generation, 1u);

  cluster.apply({MoveKind::kHeal, 2});
  cluster.run_for(3s);

  EXPECT_EQ(cluster.node(2).workers.phase, test::Workers::Phase::kNone);
  EXPECT_EQ(cluster.node(2).member.session_id, "n2/1");
  EXPECT_EQ(cluster.job()->joined.count("n2"), 1u);
  EXPECT_EQ(cluster.job()->generation, 2u);
}

TEST(CoordinatorLosses, Fault38HardFencingWaitsUntilTheLeaseOfTheUnreachableIsOver) {
  ClusterOptions options = options_of(3, 2, 3);
  options.job.fence.fencing = Fencing::kHard;
  VirtualCluster cluster(options);
  cluster.settle();
  cluster.run_for(5s);

  cluster.node(2).is_cut = true;
  const TimePoint cut_at = cluster.now();
  while (cluster.job()->generation == 1 && cluster.violation().empty()) cluster.run_for(100ms);
  EXPECT_GE(cluster.now() - cut_at, 9'500ms);  // a lease of 10 s from the last acked beat
  EXPECT_LE(cluster.now() - cut_at, 15s);
  EXPECT_EQ(cluster.node(2).workers.phase, test::Workers::Phase::kNone);
  EXPECT_EQ(cluster.violation(), "");
}

// The Welcome to the new agent renews the lease of workers whose node is lost already.
TEST(CoordinatorLosses, Fault38HardFencingWaitsForTheLeaseOfAnAgentThatCameBackAfterItsLoss) {
  ClusterOptions options = options_of(3, 2, 3);
  options.job.fence.fencing = Fencing::kHard;
  options.work = 100s;
  VirtualCluster cluster(options);
  cluster.settle();
  cluster.run_for(5s);
  cluster.apply({MoveKind::kCrashAgent, 2});
  cluster.run_for(9s);
  ASSERT_EQ(cluster.phase(), JobPhase::kStopping);  // the workers of node 2 are there still

  cluster.apply({MoveKind::kStartAgent, 2});
  cluster.apply({MoveKind::kConnect, 2});
  while (!cluster.node(2).up.empty()) cluster.apply({MoveKind::kDeliverUp, 2});
  cluster.apply({MoveKind::kDeliverDown, 2});  // Welcome
  cluster.node(2).is_cut = true;
  const TimePoint cut_at = cluster.now();
  while (cluster.job()->generation == 1 && cluster.violation().empty()) cluster.run_for(100ms);

  EXPECT_GE(cluster.now() - cut_at, 10s);
  EXPECT_EQ(cluster.violation(), "");
}

TEST(CoordinatorLosses, HardFencingGoesOnAtOnceWhenTheNodeIsSaidToBeDown) {
  ClusterOptions options = options_of(3, 2, 3);
  options.job.fence.fencing = Fencing::kHard;
  VirtualCluster cluster(options);
  cluster.settle();
  cluster.apply({MoveKind::kCrashNode, 2});

  cluster.tell(NodeDown{"n2"});
  cluster.run_for(4s);

  EXPECT_EQ(cluster.job()->generation, 2u);
}

// A node whose lease is over drops whatever it parks, until its next beat is acked.
TEST(CoordinatorLosses, APartThatIsDroppedWhilePreparingIsNotAskedForAgainAtOnce) {
  ClusterOptions options = options_of(3, 3, 3);
  options.job.fence.fencing = Fencing::kHard;
  VirtualCluster cluster(options);
  while (cluster.phase() != JobPhase::kPreparing) cluster.apply(cluster.moves(1).front());
  cluster.node(2).member.acked_at -= 100s;

  cluster.settle();
  EXPECT_EQ(cluster.violation(), "");
  EXPECT_EQ(cluster.phase(), JobPhase::kGathering);
  cluster.run_for(5s);
  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_EQ(cluster.job()->generation, 2u);
}

TEST(CoordinatorLosses, Fault56ALossWhilePreparingStartsNothingAndCostsNothing) {
  VirtualCluster cluster(options_of(3, 2, 3));
  while (cluster.phase() != JobPhase::kPreparing) cluster.apply(cluster.moves(1).front());
  cluster.apply({MoveKind::kCrashNode, 2});

  cluster.run_for(15s);

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_EQ(cluster.job()->generation, 2u);
  EXPECT_EQ(cluster.job()->history.restarts, 0);
  EXPECT_THAT(seats(cluster), ElementsAre("n0", "n1"));
}

// ---- failures and budgets ----

TEST(CoordinatorFailures, TheBudgetIsHeldOnceForTheWholeJob) {
  ClusterOptions options = options_of(2, 2, 2);
  options.job.restart.budget.max_restarts = 2;
  VirtualCluster cluster(options);
  cluster.settle();

  for (int failure = 0; failure < 3; ++failure) {
    exit_rank(cluster, failure % 2, supervisor::ExitCause::kNonZero, failure);
    cluster.run_for(10s);
  }

  EXPECT_EQ(cluster.phase(), JobPhase::kFailed);
  EXPECT_EQ(cluster.job()->generation, 3u);
  EXPECT_THAT(cluster.job()->text, HasSubstr("rank 0 on host-0 ended with exit code 3"));
  EXPECT_THAT(cluster.job()->text, HasSubstr("all 2 restarts are used up"));
}

TEST(CoordinatorFailures, Fault4OutOfMemoryHasABudgetOfItsOwn) {
  ClusterOptions options = options_of(2, 2, 2);
  options.job.restart.budget.max_restarts = 3;
  VirtualCluster cluster(options);
  cluster.settle();

  exit_rank(cluster, 0, supervisor::ExitCause::kOutOfMemory, 5);
  cluster.run_for(10s);
  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  exit_rank(cluster, 1, supervisor::ExitCause::kOutOfMemory, 6);
  cluster.run_for(10s);

  EXPECT_EQ(cluster.phase(), JobPhase::kFailed);
  EXPECT_THAT(cluster.job()->text, HasSubstr("after running out of memory are used up"));
}

TEST(CoordinatorFailures, TheSameCrashThreeTimesEndsTheJobWithoutTheRestOfTheBudget) {
  ClusterOptions options = options_of(2, 2, 2);
  options.job.restart.budget.max_restarts = 100;
  VirtualCluster cluster(options);
  cluster.settle();

  for (int failure = 0; failure < 3; ++failure) {
    exit_rank(cluster, 1, supervisor::ExitCause::kNonZero, 7);
    cluster.run_for(70s);
  }

  EXPECT_EQ(cluster.phase(), JobPhase::kFailed);
  EXPECT_EQ(cluster.job()->history.restarts, 2);
  EXPECT_THAT(cluster.job()->text, HasSubstr("the same for the 3rd time"));
}

TEST(CoordinatorFailures, AnotherStepIsAnotherCrash) {
  ClusterOptions options = options_of(2, 2, 2);
  options.job.restart.budget.max_restarts = 100;
  VirtualCluster cluster(options);
  cluster.settle();

  for (int failure = 0; failure < 4; ++failure) {
    exit_rank(cluster, 1, supervisor::ExitCause::kNonZero, failure);
    cluster.run_for(70s);
  }

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
}

TEST(CoordinatorFailures, AProgramThatCannotBeStartedIsNotTriedAgain) {
  VirtualCluster cluster(options_of(2, 2, 2));
  cluster.settle();

  exit_rank(cluster, 1, supervisor::ExitCause::kExecFailed);
  cluster.run_for(3s);

  EXPECT_EQ(cluster.phase(), JobPhase::kFailed);
  EXPECT_EQ(cluster.job()->history.restarts, 0);
}

TEST(CoordinatorFailures, TheFirstFailureByTimeIsNamedNotTheFirstReported) {
  VirtualCluster cluster(options_of(2, 2, 2));
  cluster.settle();
  cluster.run_for(5s);

  exit_rank(cluster, 0, supervisor::ExitCause::kNonZero, 5, 10ms);
  cluster.apply({MoveKind::kDeliverUp, 0});
  exit_rank(cluster, 1, supervisor::ExitCause::kNonZero, 5, 50ms);
  cluster.run_for(2s);

  ASSERT_TRUE(cluster.job()->last_failure);
  EXPECT_EQ(cluster.job()->last_failure->global_rank, 2);
}

TEST(CoordinatorFailures, ALostNodeIsTheCauseOfItsPeersFailure) {
  VirtualCluster cluster(options_of(3, 2, 3));
  cluster.settle();
  cluster.run_for(5s);

  cluster.apply({MoveKind::kCrashNode, 2});
  cluster.run_for(50ms);
  exit_rank(cluster, 0, supervisor::ExitCause::kNonZero);
  cluster.run_for(10s);

  ASSERT_TRUE(cluster.job()->last_failure);
  EXPECT_EQ(cluster.job()->last_failure->kind, FailureKind::kNodeLost);
  EXPECT_EQ(cluster.job()->last_failure->node_id, "n2");
  EXPECT_EQ(cluster.job()->generation, 2u);
}

TEST(CoordinatorFailures, TheSecondQuickFailureWaitsForABackOffWithJitter) {
  ClusterOptions options = options_of(1, 1, 1);
  options.job.restart.budget.max_restarts = 5;
  VirtualCluster cluster(options);
  cluster.chance = 0.5;  // 0.75 of the full second
  cluster.settle();

  exit_rank(cluster, 0, supervisor::ExitCause::kNonZero, 1);
  cluster.settle();
  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  exit_rank(cluster, 0, supervisor::ExitCause::kNonZero, 2);
  cluster.run_for(740ms);
  EXPECT_EQ(cluster.phase(), JobPhase::kGathering);
  cluster.run_for(20ms);

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
}

TEST(CoordinatorFailures, AFailedPreflightCheckPutsTheNodeAside) {
  VirtualCluster cluster(options_of(3, 2, 3));
  while (cluster.node(2).local.empty()) cluster.apply(cluster.moves(1).front());
  cluster.node(2).local.clear();

  cluster.tell_node(2, WorkersParked{kJob, 1, "", {{"gpu", "Xid 79"}}, 0ms});
  cluster.run_for(10s);

  EXPECT_THAT(cluster.reports(), Contains(HasSubstr("preflight check 'gpu' failed: Xid 79")));
  EXPECT_THAT(seats(cluster), ElementsAre("n0", "n1"));
  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
}

// Everything happens but the end of the preparation on these nodes.
void settle_but_for(VirtualCluster& cluster, const std::set<int>& nodes) {
  while (true) {
    const auto moves = cluster.moves(1);
    const auto next = std::find_if(moves.begin(), moves.end(), [&](const test::Move& move) {
      const bool is_held = move.kind == MoveKind::kDeliverLocal && nodes.contains(move.node);
      return move.kind != MoveKind::kAdvance && !is_held;
    });
    if (next == moves.end()) return;
    cluster.apply(*next);
  }
}

// The shim of a node, instead of parking its workers.
void fail_check(VirtualCluster& cluster, int node, const std::string& why) {
  settle_but_for(cluster, {node});
  ASSERT_FALSE(cluster.node(node).local.empty());
  cluster.node(node).local.clear();
  cluster.tell_node(
      node, WorkersParked{kJob, cluster.job()->generation, "", {{"preflight", why, true}}, 0ms});
}

TEST(CoordinatorFailures,
     AFailedCheckOfTheJobLeavesTheNodeOutOfThisJobAloneAndASpareTakesItsPlace) {
  VirtualCluster cluster(options_of(3, 2, 2));

  fail_check(cluster, 0, "preflight check 'disk' ended with exit code 3");
  cluster.run_for(10s);

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_THAT(seats(cluster), ElementsAre("n2", "n1"));
  EXPECT_EQ(cluster.job()->history.restarts, 0);
  EXPECT_EQ(cluster.state().nodes.at("n0").quarantine.ttl.count(), 0) << "other jobs may have it";
  EXPECT_THAT(cluster.reports(), Contains("preflight check 'disk' ended with exit code 3"));
}

TEST(CoordinatorFailures, AJobThatItsChecksLeaveTooFewNodesFailsAtOnceNamingThem) {
  VirtualCluster cluster(options_of(2, 2, 2));

  fail_check(cluster, 1, "preflight check 'disk' ended with exit code 3");
  cluster.run_for(10s);

  EXPECT_EQ(cluster.phase(), JobPhase::kFailed);
  EXPECT_THAT(cluster.job()->text, HasSubstr("preflight check 'disk' ended with exit code 3"));
  EXPECT_THAT(cluster.job()->text, HasSubstr("host-1"));
  EXPECT_EQ(cluster.job()->last_failure->code, 75);
}

TEST(CoordinatorFailures, NoRestartFollowsACauseForWhichNoneIsWanted) {
  ClusterOptions options = options_of(2, 2, 2);
  options.job.restart.budget.max_restarts = 5;
  options.job.restart.budget.fail_after = {supervisor::ExitCause::kSignaled};
  VirtualCluster cluster(options);
  cluster.settle();

  exit_rank(cluster, 1, supervisor::ExitCause::kSignaled);
  cluster.run_for(3s);

  EXPECT_EQ(cluster.phase(), JobPhase::kFailed);
  EXPECT_THAT(cluster.job()->text, HasSubstr("no restart is wanted after that (on_cause)"));
}

TEST(CoordinatorFailures, Fault8AnUnkillableWorkerPutsItsNodeAsideAndTheJobGoesOn) {
  VirtualCluster cluster(options_of(3, 2, 3));
  cluster.settle();

  exit_rank(cluster, 0, supervisor::ExitCause::kNonZero);
  while (cluster.node(2).local.empty()) cluster.apply(cluster.moves(1).front());
  cluster.node(2).local.clear();
  cluster.tell_node(2, WorkersGone{kJob, 1, 1});
  cluster.run_for(10s);

  EXPECT_THAT(cluster.reports(), Contains(HasSubstr("1 workers do not end after SIGKILL")));
  EXPECT_THAT(seats(cluster), ElementsAre("n0", "n1"));
}

// Issue 19: a node that could not see what a killed shim left said that nothing was left, and the lease was waived.
TEST(CoordinatorFailures, Fault27WhatIsNotProvedToBeGoneIsWaitedForAndCostsTheSeat) {
  ClusterOptions options = options_of(3, 2, 3);
  options.job.fence.fencing = Fencing::kHard;
  VirtualCluster cluster(options);
  cluster.settle();

  exit_rank(cluster, 0, supervisor::ExitCause::kNonZero);
  while (cluster.node(2).local.empty()) cluster.apply(cluster.moves(1).front());
  cluster.node(2).local.clear();
  cluster.tell_node(2, WorkersGone{.job_uuid = kJob, .generation = 1, .is_proved = false});
  cluster.run_for(20s);
  EXPECT_EQ(cluster.phase(), JobPhase::kStopping);
  cluster.run_for(60s);

  EXPECT_EQ(cluster.job()->generation, 2U);
  EXPECT_THAT(seats(cluster), ElementsAre("n0", "n1"));
  EXPECT_THAT(cluster.reports(), Contains(HasSubstr("did not stop its workers")));
}

// Whoever is not named in `cluster` as put aside or lost may take part in other jobs.
void expect_in_good_standing(const VirtualCluster& cluster, const NodeId& id) {
  const Node& node = cluster.state().nodes.at(id);
  EXPECT_EQ(node.quarantine.ttl.count(), 0) << node.quarantine.reason;
  EXPECT_EQ(node.liveness, Liveness::kLive);
  EXPECT_TRUE(node.losses.empty());
}

// Issue 19: a worker that stops its shim (`kill -STOP $PPID`) cost the other users of the node theirs.
TEST(CoordinatorFailures, Fault67APartThatDoesNotStopCostsItsJobTheSeatAndItsNodeNothing) {
  VirtualCluster cluster(options_of(3, 2, 3));
  cluster.settle();

  exit_rank(cluster, 0, supervisor::ExitCause::kNonZero);
  while (cluster.node(2).local.empty()) cluster.apply(cluster.moves(1).front());
  cluster.node(2).local.clear();
  const supervisor::StopPolicy& stop = cluster.job()->description->stop;
  cluster.run_for(stop.grace + stop.kill_wait + 60s);

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_THAT(seats(cluster), ElementsAre("n0", "n1"));
  expect_in_good_standing(cluster, "n2");
}

// Issue 19: a limit of 1 ms in a spec put every node aside for ten minutes.
TEST(CoordinatorFailures, Fault67NodesThatAreLateAreLeftOutOfThisJobAloneAndTogether) {
  VirtualCluster cluster(options_of(4, 2, 4));

  settle_but_for(cluster, {2, 3});
  for (const int late : {2, 3}) cluster.node(late).local.clear();
  cluster.run_for(cluster.job()->description->prepare_limit + 5s);

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_EQ(cluster.job()->generation, 2u);
  EXPECT_THAT(seats(cluster), ElementsAre("n0", "n1"));
  expect_in_good_standing(cluster, "n2");
  expect_in_good_standing(cluster, "n3");
}

TEST(CoordinatorFailures, AJobWhoseLimitNoNodeKeepsFailsAtOnceNamingIt) {
  VirtualCluster cluster(options_of(2, 2, 2));

  settle_but_for(cluster, {1});
  cluster.node(1).local.clear();
  cluster.run_for(cluster.job()->description->prepare_limit + 5s);

  EXPECT_EQ(cluster.phase(), JobPhase::kFailed);
  EXPECT_THAT(cluster.job()->text, HasSubstr("host-1 was not ready within 120 s"));
}

}  // namespace
}  // namespace accel::agent::coordinator_failures_test
