// The rules of coordinator.h, one by one: how jobs begin and end.

#include "agent/coordinator/decisions/coordinator.h"

#include <algorithm>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/virtual_cluster.h"
#include "tests/unit/agent/coordinator/decisions/coordinator_cases.h"

namespace accel::agent::coordinator_test {
namespace {

using namespace std::chrono_literals;
using test::ClusterOptions;
using test::MoveKind;
using test::VirtualCluster;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

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

TEST(CoordinatorSessions, AnEpochThatNoLeaderCanHaveIsRefusedAndChangesNothing) {
  VirtualCluster cluster(options_of(1, 1, 1));
  cluster.settle();
  const ConnectionId connection = cluster.node(0).connection;
  AgentMessage message;
  message.fence = {~std::uint64_t{0}, 0, "a stranger", 0};
  message.body = Hello{};
  cluster.keeps_sent = true;

  cluster.tell(FromAgent{connection + 1, message});

  EXPECT_FALSE(cluster.state().is_outdated);
  ASSERT_EQ(cluster.sent().size(), 1u);
  const auto& refused = std::get<Refused>(cluster.sent()[0].second.body);
  EXPECT_EQ(refused.message,
            "no coordinator has leader epoch 18446744073709551615: the highest is 281474976710656");
}

TEST(CoordinatorSessions, AnAgentDoesNotFollowAnEpochThatNoLeaderCanHave) {
  VirtualCluster cluster(options_of(1, 1, 1));
  cluster.settle();
  CoordinatorMessage message;
  message.fence = {~std::uint64_t{0}, 0, cluster.node(0).member.session_id, 1};
  message.body = Welcome{};

  cluster.tell_node(0, FromCoordinator{message});

  EXPECT_EQ(cluster.node(0).member.epoch, 1u);
  EXPECT_EQ(cluster.node(0).connection, 0u);  // it looks for another one
  cluster.run_for(5s);
  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
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

    stop_written(cluster, false, asked);

    ASSERT_EQ(cluster.sent().size(), 2u);
    EXPECT_EQ(std::get<Stop>(cluster.sent()[0].second.body).grace, granted);
  }
}

TEST(CoordinatorEnds, Fault69AStopThatGoesOnIsShortened) {
  VirtualCluster cluster(options_of(2, 2, 2));
  cluster.settle();
  stop_written(cluster, false);
  cluster.keeps_sent = true;

  stop_written(cluster, false, Milliseconds(2'000));
  EXPECT_TRUE(cluster.sent().empty()) << "longer than what was told";
  stop_written(cluster, false, Milliseconds(7));

  ASSERT_EQ(cluster.sent().size(), 2u);
  EXPECT_EQ(std::get<Stop>(cluster.sent()[0].second.body).grace, Milliseconds(7));
}

TEST(CoordinatorEnds, ASecondStopKills) {
  VirtualCluster cluster(options_of(2, 2, 2));
  cluster.settle();
  cluster.keeps_sent = true;

  stop_written(cluster, false);
  cluster.forget_sent();
  stop_written(cluster, true);

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

// What is made of it for the wire is made once.
TEST(CoordinatorSize, AllAssignsShareOneDescription) {
  VirtualCluster cluster(options_of(12, 12, 12));
  cluster.keeps_sent = true;
  cluster.settle();

  std::set<const JobDescription*> descriptions;
  int assigns = 0;
  for (const auto& [connection, message] : cluster.sent()) {
    const auto* assign = std::get_if<Assign>(&message.body);
    if (!assign) continue;
    ++assigns;
    descriptions.insert(assign->job.get());
    EXPECT_EQ(assign->world_size, 24);
  }

  EXPECT_EQ(assigns, 12);
  EXPECT_EQ(descriptions.size(), 1U);
}

}  // namespace
}  // namespace accel::agent::coordinator_test
