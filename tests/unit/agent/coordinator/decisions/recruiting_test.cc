// Which nodes a job that came by Control asks, on a cluster without clock and network.

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/virtual_cluster.h"

namespace accel::agent::recruiting_test {
namespace {

using namespace std::chrono_literals;
using test::ClusterOptions;
using test::MoveKind;
using test::VirtualCluster;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr const char* kJob = "job-1";

ClusterOptions options_of(int nodes, int min_nodes, int max_nodes) {
  ClusterOptions options;
  options.num_nodes = nodes;
  options.job = test::small_job(min_nodes, max_nodes);
  options.job.recruits = true;
  options.work = 600s;
  return options;
}

JobDescription other_job(int nodes, int procs_per_node) {
  JobDescription job = test::small_job(nodes, nodes);
  job.job_uuid = "job-2";
  job.job_id = "other";
  job.procs_per_node = procs_per_node;
  job.recruits = true;
  return job;
}

std::vector<NodeId> seats(const VirtualCluster& cluster, const char* uuid = kJob) {
  std::vector<NodeId> ids;
  for (const Member& member : cluster.state().jobs.at(uuid).members) ids.push_back(member.node_id);
  return ids;
}

int num_invitations(VirtualCluster& cluster) {
  int count = 0;
  for (std::size_t i = 0; i < cluster.num_nodes(); ++i) {
    count += cluster.node(static_cast<int>(i)).num_invitations;
  }
  return count;
}

TEST(Recruiting, InvitesAsManyNodesAsTheJobMayHave) {
  VirtualCluster cluster(options_of(4, 2, 3));

  cluster.settle();

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_EQ(seats(cluster).size(), 3u);
  EXPECT_EQ(num_invitations(cluster), 3);
  EXPECT_EQ(cluster.violation(), "");
}

TEST(Recruiting, ANodeThatDeclinesIsNotAskedAgainAndAnotherOneIs) {
  VirtualCluster cluster(options_of(3, 2, 2));
  cluster.node(0).declines = "user 'ann' is not in the user database";

  cluster.settle();

  EXPECT_THAT(seats(cluster), UnorderedElementsAre("n1", "n2"));
  EXPECT_EQ(cluster.node(0).num_invitations, 1);
  EXPECT_THAT(cluster.reports(), Contains("user 'ann' is not in the user database"));
  cluster.tell(ScaleJob{kJob, 3, 3});
  cluster.run_for(10s);
  EXPECT_EQ(cluster.node(0).num_invitations, 1);
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

TEST(Recruiting, ANodeWhoseCheckFailsIsReplacedByOneThatIsAskedThen) {
  VirtualCluster cluster(options_of(3, 2, 2));
  settle_but_for(cluster, 0);
  ASSERT_FALSE(cluster.node(0).local.empty());
  cluster.node(0).local.clear();

  cluster.tell_node(0, WorkersParked{kJob, 1, "", {{"preflight", "no disk", true}}, {}});
  cluster.run_for(10s);

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_THAT(seats(cluster), UnorderedElementsAre("n1", "n2"));
  EXPECT_EQ(cluster.node(0).num_invitations, 1);
  EXPECT_EQ(cluster.violation(), "");
}

TEST(Recruiting, AJobWhoseChecksFailEverywhereFailsAtOnce) {
  VirtualCluster cluster(options_of(2, 2, 2));
  settle_but_for(cluster, 0);
  ASSERT_FALSE(cluster.node(0).local.empty());
  cluster.node(0).local.clear();

  cluster.tell_node(0, WorkersParked{kJob, 1, "", {{"preflight", "no disk", true}}, {}});
  cluster.run_for(10s);

  EXPECT_EQ(cluster.phase(), JobPhase::kFailed);
  EXPECT_THAT(cluster.job()->text, HasSubstr("no disk"));
}

TEST(Recruiting, AJobThatLacksNodesNamesThoseThatDeclined) {
  ClusterOptions options = options_of(2, 2, 2);
  options.job.join_limit = 20s;
  VirtualCluster cluster(options);
  cluster.node(1).declines = "no such user";

  cluster.run_for(30s);

  EXPECT_EQ(cluster.phase(), JobPhase::kFailed);
  EXPECT_EQ(cluster.job()->text,
            "1 of 2 nodes joined; n1 does not take part: no such user within 20 s");
}

TEST(Recruiting, ANodeThatDoesNotAnswerIsAskedAgainAndOthersBesideIt) {
  VirtualCluster cluster(options_of(3, 2, 2));
  cluster.node(0).ignores_invitations = true;

  cluster.run_for(1'100ms);

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_THAT(seats(cluster), UnorderedElementsAre("n1", "n2"));
}

TEST(Recruiting, ALostInvitationIsRepeated) {
  VirtualCluster cluster(options_of(1, 1, 1));
  while (!(cluster.job() && cluster.job()->invited.count("n0"))) {
    ASSERT_FALSE(cluster.moves(1).empty());
    cluster.apply(cluster.moves(1).front());
  }
  auto& down = cluster.node(0).down;
  ASSERT_TRUE(std::holds_alternative<Invite>(down.back().second.body));
  down.pop_back();

  cluster.run_for(2s);

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
}

TEST(Recruiting, ANodeThatComesLateIsAskedAndTakesPart) {
  VirtualCluster cluster(options_of(2, 2, 2));
  cluster.node(1).is_cut = true;
  cluster.run_for(20s);
  EXPECT_EQ(cluster.phase(), JobPhase::kGathering);

  cluster.node(1).is_cut = false;
  cluster.run_for(10s);

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
}

TEST(Recruiting, SurvivorsGoOnWithASpareNodeThatIsAskedWhenOneIsLost) {
  VirtualCluster cluster(options_of(3, 2, 2));
  cluster.settle();
  const auto before = seats(cluster);
  const int lost = before[1] == "n1" ? 1 : 2;

  cluster.apply({MoveKind::kCrashNode, lost, 0});
  cluster.run_for(20s);

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_EQ(cluster.job()->generation, 2u);
  EXPECT_EQ(seats(cluster)[0], before[0]);
  EXPECT_EQ(seats(cluster).size(), 2u);
}

TEST(Recruiting, ASuspendedJobAsksNodesThatComeBack) {
  VirtualCluster cluster(options_of(2, 2, 2));
  cluster.settle();
  cluster.apply({MoveKind::kCrashNode, 1, 0});
  cluster.run_for(20s);
  ASSERT_EQ(cluster.phase(), JobPhase::kSuspended);

  cluster.apply({MoveKind::kStartNode, 1, 0});
  cluster.run_for(20s);

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_EQ(cluster.violation(), "");
}

TEST(Recruiting, ScalingUpAsksMoreNodesAndFormsAnewWithThem) {
  VirtualCluster cluster(options_of(3, 1, 1));
  cluster.settle();
  ASSERT_EQ(seats(cluster).size(), 1u);

  cluster.tell(ScaleJob{kJob, 2, 3});
  cluster.run_for(10s);

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_EQ(seats(cluster).size(), 3u);
  EXPECT_EQ(cluster.job()->history.restarts, 0);
}

TEST(Recruiting, ALateNodeOfASmallJobIsParkedUntilTheNextRestart) {
  VirtualCluster cluster(options_of(2, 1, 2));
  cluster.node(1).is_cut = true;
  cluster.run_for(5s);
  ASSERT_EQ(seats(cluster).size(), 1u);

  cluster.node(1).is_cut = false;
  cluster.run_for(10s);

  EXPECT_EQ(seats(cluster).size(), 1u);
  EXPECT_EQ(cluster.job()->joined.size(), 2u);
}

TEST(Recruiting, SlotsOfAnotherJobAreNotGivenTwice) {
  VirtualCluster cluster(options_of(2, 2, 2));
  cluster.settle();
  ASSERT_EQ(cluster.phase(), JobPhase::kRunning);  // 2 of 2 slots on both

  cluster.tell(StartJob{"request-2", other_job(2, 1)});
  cluster.run_for(20s);

  EXPECT_EQ(cluster.state().jobs.at("job-2").phase, JobPhase::kGathering);
  cluster.tell(StopJob{kJob, true});
  cluster.run_for(10s);
  EXPECT_EQ(cluster.phase(), JobPhase::kCancelled);
  EXPECT_EQ(seats(cluster, "job-2").size(), 2u);
}

TEST(Recruiting, TwoJobsShareANodeThatHasRoomForBoth) {
  ClusterOptions options = options_of(2, 2, 2);
  options.job.procs_per_node = 1;
  VirtualCluster cluster(options);
  cluster.settle();

  cluster.tell(StartJob{"request-2", other_job(2, 1)});
  cluster.settle();

  EXPECT_EQ(seats(cluster).size(), 2u);
  EXPECT_EQ(seats(cluster, "job-2").size(), 2u);
}

TEST(Recruiting, ANodeTooSmallForTheJobIsNotAsked) {
  VirtualCluster cluster(options_of(2, 1, 2));
  cluster.settle();
  cluster.tell(StartJob{"request-2", other_job(1, 3)});

  cluster.run_for(10s);

  EXPECT_EQ(cluster.state().jobs.at("job-2").joined.size(), 0u);
}

TEST(Recruiting, ANodeThatIsFullOfJobsOfItsOwnTakesNoPartUntilTheyEnd) {
  VirtualCluster cluster(options_of(3, 2, 2));
  cluster.node(0).member.slots_taken = 1;  // of 2, and the job needs 2

  cluster.run_for(10s);

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_THAT(seats(cluster), UnorderedElementsAre("n1", "n2"));

  cluster.tell(ScaleJob{kJob, 3, 3});
  cluster.run_for(10s);
  EXPECT_EQ(seats(cluster).size(), 2u);
  cluster.node(0).member.slots_taken = 0;
  cluster.run_for(10s);
  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_EQ(seats(cluster).size(), 3u);
  EXPECT_EQ(cluster.violation(), "");
}

TEST(Recruiting, ANodeKeepsItsSeatThoughAJobOfItsOwnCameMeanwhile) {
  VirtualCluster cluster(options_of(2, 2, 2));
  cluster.settle();
  ASSERT_EQ(cluster.phase(), JobPhase::kRunning);
  cluster.node(0).member.slots_taken = 2;
  cluster.run_for(3s);

  cluster.apply({MoveKind::kCrashNode, 1, 0});
  cluster.apply({MoveKind::kStartNode, 1, 0});
  cluster.run_for(20s);

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_EQ(cluster.job()->generation, 2u);
  EXPECT_THAT(seats(cluster), UnorderedElementsAre("n0", "n1"));
}

TEST(Recruiting, ADrainedNodeIsNotAsked) {
  VirtualCluster cluster(options_of(3, 2, 2));
  cluster.tell(DrainNode{"n0", "broken fan"});

  cluster.settle();

  EXPECT_THAT(seats(cluster), UnorderedElementsAre("n1", "n2"));
}

TEST(Recruiting, AnIdThatIsInUseIsRefused) {
  VirtualCluster cluster(options_of(1, 1, 1));
  cluster.settle();
  JobDescription twin = other_job(1, 1);
  twin.job_id = cluster.job()->description->job_id;

  cluster.tell(StartJob{"request-2", twin});

  EXPECT_THAT(cluster.reports(), Contains("reply refused there is a job 'train' already"));
}

TEST(Recruiting, ATakeOverGoesOnAskingForTheJobsOfThePredecessor) {
  VirtualCluster cluster(options_of(2, 2, 2));
  cluster.node(1).is_cut = true;
  cluster.run_for(2s);
  ASSERT_EQ(cluster.phase(), JobPhase::kGathering);

  cluster.apply({MoveKind::kCrashCoordinator, 0, 0});
  cluster.apply({MoveKind::kStartCoordinator, 0, 0});
  cluster.node(1).is_cut = false;
  cluster.run_for(20s);

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_EQ(cluster.violation(), "");
}

TEST(Recruiting, AnAgentThatBeganAnewIsAskedAgainAndKeepsItsRank) {
  VirtualCluster cluster(options_of(2, 2, 2));
  cluster.settle();
  const auto before = seats(cluster);
  cluster.apply({MoveKind::kCrashNode, 1, 0});
  cluster.apply({MoveKind::kStartNode, 1, 0});

  cluster.run_for(20s);

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_EQ(cluster.job()->generation, 2u);
  EXPECT_EQ(seats(cluster), before);
  EXPECT_EQ(cluster.node(1).num_invitations, 2);
}

}  // namespace
}  // namespace accel::agent::recruiting_test
