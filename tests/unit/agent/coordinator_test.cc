// The rules of coordinator.h, one by one, on a cluster without clock and network.

#include "agent/coordinator/coordinator.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/virtual_cluster.h"

namespace accel::agent {
namespace {

using namespace std::chrono_literals;
using test::ClusterOptions;
using test::MoveKind;
using test::VirtualCluster;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kJob = "job-1";

ClusterOptions options_of(int nodes, int min_nodes, int max_nodes) {
  ClusterOptions options;
  options.num_nodes = nodes;
  options.job = test::small_job(min_nodes, max_nodes);
  options.work = 600s;
  return options;
}

void connect(VirtualCluster& cluster, int node) {
  cluster.node(node).is_cut = false;
  cluster.settle();
}

// Only the first `number` nodes can reach the coordinator.
VirtualCluster with_nodes_up(const ClusterOptions& options, int number) {
  VirtualCluster cluster(options);
  for (int i = number; i < options.num_nodes; ++i) cluster.node(i).is_cut = true;
  cluster.settle();
  return cluster;
}

std::vector<NodeId> seats(const VirtualCluster& cluster) {
  std::vector<NodeId> ids;
  for (const Member& member : cluster.job()->members) ids.push_back(member.node_id);
  return ids;
}

void exit_rank(VirtualCluster& cluster,
               int node,
               supervisor::ExitCause cause,
               std::int64_t step = 5,
               std::chrono::nanoseconds ago = 0ns) {
  auto& virtual_node = cluster.node(node);
  supervisor::WorkerExit exit;
  exit.global_rank = virtual_node.workers.first_rank;
  exit.cause = cause;
  exit.exit_code = 3;
  exit.seen_at = cluster.now().time_since_epoch() - ago;
  virtual_node.workers.phase = test::Workers::Phase::kNone;
  cluster.tell_node(node, WorkerExited{kJob, virtual_node.workers.generation, step, exit});
}

// ---- gathering ----

TEST(CoordinatorGathering, BeginsAtOnceWhenMaxNodesHaveJoined) {
  VirtualCluster cluster(options_of(3, 2, 3));

  cluster.settle();

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_THAT(seats(cluster), ElementsAre("n0", "n1", "n2"));
  EXPECT_EQ(cluster.job()->members[2].first_rank, 4);
  EXPECT_EQ(cluster.violation(), "");
}

TEST(CoordinatorGathering, WaitsForTheLastCallWhenMinNodesHaveJoined) {
  VirtualCluster cluster = with_nodes_up(options_of(3, 2, 3), 2);

  cluster.run_for(2'900ms);
  EXPECT_EQ(cluster.phase(), JobPhase::kGathering);
  cluster.run_for(200ms);

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_EQ(cluster.job()->members.size(), 2u);
}

TEST(CoordinatorGathering, AMomentThatAnotherEventCameBeforeIsStillDue) {
  VirtualCluster cluster = with_nodes_up(options_of(3, 2, 3), 2);
  cluster.run_for(2'900ms);
  const TimePoint late =
      cluster.now() + 200ms;  // the last call is over, and its timer has not fired

  const Step other = step(cluster.state(), {.at = late, .what = ConnectionLost{99}});
  EXPECT_LE(next_wake(other.state), late);
  const Step tick = step(other.state, {.at = late, .what = Tick{}});

  EXPECT_EQ(tick.state.jobs.at(kJob).phase, JobPhase::kPreparing);
  EXPECT_GT(next_wake(tick.state), late);
}

TEST(CoordinatorGathering, ANodeThatComesWithinTheLastCallTakesPart) {
  VirtualCluster cluster = with_nodes_up(options_of(3, 2, 3), 2);
  cluster.run_for(2s);

  connect(cluster, 2);

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_EQ(cluster.job()->members.size(), 3u);
}

TEST(CoordinatorGathering, BeginsAtOnceWhenAllExpectedHostsAreIn) {
  ClusterOptions options = options_of(3, 1, 3);
  options.job.expected_hosts = {"host-0", "host-1"};

  VirtualCluster cluster = with_nodes_up(options, 2);

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
}

TEST(CoordinatorGathering, Fault52NamesMissingHostsAfterTenSecondsAndFailsAtTheLimit) {
  ClusterOptions options = options_of(3, 3, 3);
  options.job.expected_hosts = {"host-0", "host-1", "host-2"};
  VirtualCluster cluster = with_nodes_up(options, 2);

  cluster.run_for(9'900ms);
  EXPECT_THAT(cluster.reports(), Not(Contains(HasSubstr("missing: host-2"))));
  cluster.run_for(200ms);
  EXPECT_THAT(cluster.reports(), Contains("2 of 3 nodes joined; missing: host-2"));
  cluster.run_for(590s);

  EXPECT_EQ(cluster.phase(), JobPhase::kFailed);
  EXPECT_EQ(cluster.job()->text, "2 of 3 nodes joined; missing: host-2 within 600 s");
}

TEST(CoordinatorGathering, Fault51ALateNodeIsParkedAndTakesPartFromTheNextRestart) {
  VirtualCluster cluster = with_nodes_up(options_of(3, 2, 3), 2);
  cluster.run_for(4s);
  ASSERT_EQ(cluster.phase(), JobPhase::kRunning);

  connect(cluster, 2);
  cluster.run_for(60s);
  EXPECT_EQ(cluster.job()->generation, 1u);
  exit_rank(cluster, 0, supervisor::ExitCause::kNonZero);
  cluster.run_for(1s);

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_THAT(seats(cluster), ElementsAre("n0", "n1", "n2"));
}

TEST(CoordinatorGathering, ScaleTakesTheParkedNodeInWithoutCostToTheBudget) {
  VirtualCluster cluster = with_nodes_up(options_of(3, 2, 3), 2);
  cluster.run_for(4s);
  connect(cluster, 2);

  cluster.tell(ScaleJob{kJob, 2, 3});
  cluster.run_for(1s);

  EXPECT_EQ(cluster.job()->members.size(), 3u);
  EXPECT_EQ(cluster.job()->history.restarts, 0);
}

TEST(CoordinatorGathering, ScaleUpAutoTakesThemInAfterALastCall) {
  ClusterOptions options = options_of(3, 2, 3);
  options.job.scale_up = ScaleUp::kAuto;
  VirtualCluster cluster = with_nodes_up(options, 2);
  cluster.run_for(4s);
  connect(cluster, 2);

  cluster.run_for(4s);

  EXPECT_EQ(cluster.job()->members.size(), 3u);
  EXPECT_EQ(cluster.job()->history.restarts, 0);
}

// ---- sessions ----

TEST(CoordinatorSessions, Fault50ALiveDuplicateIsRefused) {
  VirtualCluster cluster = with_nodes_up(options_of(2, 2, 2), 1);
  cluster.node(1).info.node_id = "n0";
  cluster.node(1).info.boot_id = "clone";
  cluster.node(1).member.node = cluster.node(1).info;
  cluster.node(1).member.session_id = "clone-session";
  cluster.keeps_sent = true;
  const ConnectionId clone = 2;

  cluster.node(1).is_cut = false;
  cluster.apply({MoveKind::kConnect, 1});
  cluster.apply({MoveKind::kDeliverUp, 1});

  ASSERT_FALSE(cluster.sent().empty());
  EXPECT_EQ(cluster.sent().back().first, clone);
  const auto* refused = std::get_if<Refused>(&cluster.sent().back().second.body);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->code, RefusalCode::kAlreadyExists);
  EXPECT_EQ(cluster.state().nodes.at("n0").session.id, "n0/0");
}

TEST(CoordinatorSessions, Fault32ASecondAgentOfTheSameBootReplacesTheFirst) {
  VirtualCluster cluster(options_of(2, 2, 2));
  cluster.settle();
  auto& node = cluster.node(0);
  const ConnectionId old = node.connection;
  cluster.keeps_sent = true;

  node.connection = 0;  // the old one still looks connected to the coordinator
  node.member.session_id = "n0/other";
  cluster.apply({MoveKind::kConnect, 0});
  cluster.apply({MoveKind::kDeliverUp, 0});

  ASSERT_FALSE(cluster.sent().empty());
  EXPECT_EQ(cluster.sent().front().first, old);
  const auto* fenced = std::get_if<Fenced>(&cluster.sent().front().second.body);
  ASSERT_TRUE(fenced);
  EXPECT_EQ(fenced->reason, FenceReason::kReplaced);
}

TEST(CoordinatorSessions, Fault55NoCommonVersionIsRefusedNamingBoth) {
  VirtualCluster cluster(options_of(1, 1, 1));
  cluster.keeps_sent = true;
  AgentMessage message;
  message.fence.session_id = "s";
  message.body = Hello{7, 9, "accel 9.0", {"n9", "b", "h9"}, {}};

  cluster.tell(FromAgent{77, message});

  // The connection is nobody's here, so the message is only in the record.
  const auto* refused = std::get_if<Refused>(&cluster.sent().at(0).second.body);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->code, RefusalCode::kFailedPrecondition);
  EXPECT_THAT(refused->message, HasSubstr("agent accel 9.0 speaks 7..9, this coordinator 1"));
}

TEST(CoordinatorSessions, Fault42RepeatedAndEarlyMessagesAreDroppedAndCounted) {
  VirtualCluster cluster(options_of(1, 1, 1));
  cluster.settle();
  const auto before = cluster.state().dropped;
  AgentMessage message;
  message.fence = {1, 0, "n0/0", 1};
  message.mono = 1ns;
  message.body = Join{kJob};
  const ConnectionId connection = cluster.node(0).connection;

  cluster.tell(FromAgent{connection, message});  // Join was number 1
  message.fence.seq = 99;
  cluster.tell(FromAgent{connection, message});
  message.fence = {0, 0, "n0/0", 3};
  cluster.tell(FromAgent{connection, message});
  message.fence = {1, 0, "stranger", 3};
  cluster.tell(FromAgent{connection, message});

  EXPECT_EQ(cluster.state().dropped.repeated, before.repeated + 1);
  EXPECT_EQ(cluster.state().dropped.early, before.early + 1);
  EXPECT_EQ(cluster.state().dropped.lower_epoch, before.lower_epoch + 1);
  EXPECT_EQ(cluster.state().dropped.unknown_session, before.unknown_session + 1);
}

TEST(CoordinatorSessions, Fault41AHigherEpochMakesItStopDeciding) {
  VirtualCluster cluster(options_of(1, 1, 1));
  cluster.settle();
  AgentMessage message;
  message.fence = {2, 0, "n0/0", 9};
  message.body = Beat{};

  cluster.tell(FromAgent{cluster.node(0).connection, message});
  cluster.keeps_sent = true;
  cluster.tell(StopJob{kJob});

  EXPECT_TRUE(cluster.state().is_outdated);
  EXPECT_TRUE(cluster.sent().empty());
}

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

// Everything happens but the end of the preparation on this node.
void settle_but_for(VirtualCluster& cluster, int node) {
  while (true) {
    const auto moves = cluster.moves(1);
    const auto next = std::find_if(moves.begin(), moves.end(), [&](const test::Move& move) {
      const bool is_held = move.kind == MoveKind::kDeliverLocal && move.node == node;
      return move.kind != MoveKind::kAdvance && !is_held;
    });
    if (next == moves.end()) return;
    cluster.apply(*next);
  }
}

// The shim of a node, instead of parking its workers.
void fail_check(VirtualCluster& cluster, int node, const std::string& why) {
  settle_but_for(cluster, node);
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

// ---- ends ----

TEST(CoordinatorEnds, EveryRankAtZeroIsSuccess) {
  ClusterOptions options = options_of(2, 2, 2);
  options.work = 5s;
  VirtualCluster cluster(options);

  cluster.run_for(6s);

  EXPECT_EQ(cluster.phase(), JobPhase::kSucceeded);
  cluster.run_for(3s);
  EXPECT_TRUE(cluster.node(0).member.jobs.empty());
}

TEST(CoordinatorEnds, Fault5ARankThatEndsEarlyMayBeAloneForEver) {
  VirtualCluster cluster(options_of(2, 2, 2));
  cluster.settle();
  cluster.node(0).workers.ends_at = cluster.now() + 1s;

  cluster.run_for(500s);

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
}

TEST(CoordinatorEnds, Fault5AFinishSkewThatIsOverFailsTheGeneration) {
  ClusterOptions options = options_of(2, 2, 2);
  options.job.finish_skew = 30s;
  options.job.restart.budget.max_restarts = 0;
  VirtualCluster cluster(options);
  cluster.settle();
  cluster.node(0).workers.ends_at = cluster.now() + 1s;

  cluster.run_for(40s);

  EXPECT_EQ(cluster.phase(), JobPhase::kFailed);
  EXPECT_THAT(cluster.job()->text, HasSubstr("still ran 30 s after the first had ended"));
}

TEST(CoordinatorEnds, ANodeThatIsDoneMayGoWithoutHarm) {
  VirtualCluster cluster(options_of(2, 2, 2));
  cluster.settle();
  cluster.node(0).workers.ends_at = cluster.now() + 1s;
  cluster.run_for(3s);

  cluster.apply({MoveKind::kCrashNode, 0});
  cluster.run_for(30s);
  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  cluster.node(1).workers.ends_at = cluster.now() + 1s;
  cluster.run_for(3s);

  EXPECT_EQ(cluster.phase(), JobPhase::kSucceeded);
}

TEST(CoordinatorEnds, StopEndsARunningJobAsCancelled) {
  VirtualCluster cluster(options_of(2, 2, 2));
  cluster.settle();

  cluster.tell(StopJob{kJob});
  cluster.settle();

  EXPECT_EQ(cluster.phase(), JobPhase::kCancelled);
  EXPECT_EQ(cluster.node(0).workers.phase, test::Workers::Phase::kNone);
}

TEST(CoordinatorEnds, Fault69AStopMayShortenTheGraceOfTheJob) {
  for (const auto& [asked, granted] : {std::pair(Milliseconds(7), Milliseconds(7)),
                                       std::pair(Milliseconds(3'600'000), Milliseconds(1'000))}) {
    VirtualCluster cluster(options_of(2, 2, 2));
    cluster.settle();
    cluster.keeps_sent = true;

    cluster.tell(StopJob{.job_uuid = kJob, .grace = asked});

    ASSERT_EQ(cluster.sent().size(), 2u);
    EXPECT_EQ(std::get<Stop>(cluster.sent()[0].second.body).grace, granted);
  }
}

TEST(CoordinatorEnds, Fault69AStopThatGoesOnIsShortened) {
  VirtualCluster cluster(options_of(2, 2, 2));
  cluster.settle();
  cluster.tell(StopJob{kJob});
  cluster.keeps_sent = true;

  cluster.tell(StopJob{.job_uuid = kJob, .grace = Milliseconds(2'000)});
  EXPECT_TRUE(cluster.sent().empty()) << "longer than what was told";
  cluster.tell(StopJob{.job_uuid = kJob, .grace = Milliseconds(7)});

  ASSERT_EQ(cluster.sent().size(), 2u);
  EXPECT_EQ(std::get<Stop>(cluster.sent()[0].second.body).grace, Milliseconds(7));
}

TEST(CoordinatorEnds, ASecondStopKills) {
  VirtualCluster cluster(options_of(2, 2, 2));
  cluster.settle();
  cluster.keeps_sent = true;

  cluster.tell(StopJob{kJob});
  cluster.forget_sent();
  cluster.tell(StopJob{kJob, true});

  ASSERT_EQ(cluster.sent().size(), 2u);
  EXPECT_TRUE(std::get<Stop>(cluster.sent()[0].second.body).kill);
}

TEST(CoordinatorEnds, DrainEmptiesTheNodeAndUndrainTakesItBack) {
  VirtualCluster cluster(options_of(3, 2, 3));
  cluster.settle();

  cluster.tell(DrainNode{"n1", "new memory"});
  cluster.run_for(5s);
  EXPECT_THAT(seats(cluster), ElementsAre("n0", "n2"));
  EXPECT_EQ(cluster.job()->history.restarts, 0);
  cluster.tell(UndrainNode{"n1"});
  cluster.tell(ScaleJob{kJob, 2, 3});
  cluster.run_for(5s);

  EXPECT_EQ(cluster.job()->members.size(), 3u);
}

TEST(CoordinatorEnds, LeaveIsNeitherALossNorTheEndOfTheJob) {
  VirtualCluster cluster(options_of(3, 2, 3));
  cluster.settle();

  cluster.tell_node(1, WantLeave{"", "maintenance"});
  cluster.run_for(5s);

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_THAT(seats(cluster), ElementsAre("n0", "n2"));
  EXPECT_EQ(cluster.job()->history.restarts, 0);
  EXPECT_TRUE(cluster.state().nodes.at("n1").losses.empty());
}

TEST(CoordinatorEnds, AccountsOfTheLedgerAddUpToTheJobsAge) {
  VirtualCluster cluster(options_of(3, 2, 3));
  const TimePoint begin = cluster.now();
  cluster.settle();
  cluster.tell_node(0, StepsMade{kJob, 1, 1, 1, {}});
  cluster.run_for(20s);
  cluster.apply({MoveKind::kCrashNode, 2});
  cluster.run_for(30s);

  const LedgerState ledger = settled(cluster.job()->ledger, cluster.now());
  Duration sum{};
  for (const Duration booked : ledger.booked) sum += booked;

  EXPECT_EQ(sum, cluster.now() - begin);
  EXPECT_GE(ledger.of(Account::kProductive), 15s);
  EXPECT_GE(ledger.of(Account::kDetect), 3'500ms);
  EXPECT_LE(ledger.of(Account::kDetect), 5s);
}

TEST(CoordinatorEnds, AJobThatReportsNoStepsIsProductiveWhileItRuns) {
  ClusterOptions options = options_of(3, 2, 3);
  options.work = Milliseconds(3'000);
  VirtualCluster cluster(options);
  cluster.settle();
  cluster.run_for(20s);

  ASSERT_TRUE(cluster.has_ended());
  const LedgerState& ledger = cluster.job()->ledger;
  EXPECT_EQ(ledger.of(Account::kInit), 0s);
  EXPECT_GE(ledger.of(Account::kProductive), 2s);
  EXPECT_THAT(describe(ledger), HasSubstr("productive "));
}

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

// ---- many ----

TEST(CoordinatorSize, MembersAreGivenByPages) {
  VirtualCluster cluster(options_of(3, 3, 3));
  cluster.settle();

  const auto page = members_page(cluster.state(), kJob, 1, 5);

  ASSERT_EQ(page.size(), 2u);
  EXPECT_EQ(page[0].node_id, "n1");
  EXPECT_EQ(page[0].address, "10.0.0.1");
  EXPECT_EQ(page[1].first_rank, 4);
  EXPECT_TRUE(members_page(cluster.state(), kJob, 3, 5).empty());
}

TEST(CoordinatorSize, AllAssignsShareOneHostlist) {
  VirtualCluster cluster(options_of(12, 12, 12));
  cluster.keeps_sent = true;
  cluster.settle();

  const std::string* shared = nullptr;
  int assigns = 0;
  for (const auto& [connection, message] : cluster.sent()) {
    const auto* assign = std::get_if<Assign>(&message.body);
    if (!assign) continue;
    ++assigns;
    if (shared) {
      EXPECT_EQ(assign->hostlist.get(), shared);
    }
    shared = assign->hostlist.get();
    EXPECT_EQ(assign->world_size, 24);
  }

  EXPECT_EQ(assigns, 12);
  ASSERT_TRUE(shared);
  EXPECT_EQ(*shared, "host-[0-11]");
}

}  // namespace
}  // namespace accel::agent
