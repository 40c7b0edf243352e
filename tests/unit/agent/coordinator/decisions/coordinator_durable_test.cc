// What is told is durable first: stops and ends are written before anybody hears of them, so the next coordinator knows
// them, and a disk that cannot be written holds them back.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/coordinator/decisions/coordinator.h"
#include "tests/support/virtual_cluster.h"
#include "tests/unit/agent/coordinator/decisions/coordinator_cases.h"

namespace accel::agent::coordinator_durable_test {
namespace {

using namespace std::chrono_literals;
using test::ClusterOptions;
using test::MoveKind;
using test::VirtualCluster;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

// By one move of whatever is under way, or of the clock.
void move_on(VirtualCluster& cluster) {
  const auto moves = cluster.moves(1);
  cluster.apply(moves.empty() ? test::Move{MoveKind::kAdvance} : moves.front());
}

TEST(CoordinatorDurable, NobodyHearsOfAStopBeforeItIsWritten) {
  VirtualCluster cluster(options_of(2, 2, 2));
  cluster.settle();
  cluster.keeps_sent = true;
  const std::size_t num_told = cluster.reports().size();

  cluster.stop_job(false);
  EXPECT_TRUE(cluster.sent().empty());
  EXPECT_EQ(cluster.reports().size(), num_told);
  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  cluster.apply({MoveKind::kWrite});

  EXPECT_EQ(cluster.sent().size(), 2u);
  EXPECT_EQ(cluster.phase(), JobPhase::kStopping);
  EXPECT_EQ(cluster.reports().back(), "reply accepted ");
}

TEST(CoordinatorDurable, NobodyHearsOfAnEndBeforeItIsWritten) {
  VirtualCluster cluster(options_of(1, 1, 1));
  cluster.settle();
  cluster.node(0).workers.ends_at = cluster.now() + 1s;
  while (!cluster.job()->ending) move_on(cluster);
  cluster.keeps_sent = true;

  cluster.advance_by(3s);
  EXPECT_TRUE(cluster.sent().empty());
  EXPECT_THAT(cluster.reports(), Not(Contains(HasSubstr("succeeded"))));
  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  cluster.apply({MoveKind::kWrite});

  EXPECT_EQ(cluster.phase(), JobPhase::kSucceeded);
  ASSERT_EQ(cluster.sent().size(), 1u);
  EXPECT_EQ(std::get<Notice>(cluster.sent()[0].second.body).kind, NoticeKind::kSucceeded);
}

TEST(CoordinatorDurable, AJobThatIsNotThereCannotBeStopped) {
  VirtualCluster cluster(options_of(1, 1, 1));

  cluster.tell(StopJob{"another", false, {}, "request-2"});

  EXPECT_EQ(cluster.reports().back(), "reply refused there is no such job");
}

TEST(CoordinatorDurable, AJobThatWasStoppedIsStoppedByTheNextCoordinator) {
  VirtualCluster cluster(options_of(2, 2, 2));
  cluster.settle();
  stop_written(cluster, false);
  ASSERT_EQ(cluster.node(0).workers.phase, test::Workers::Phase::kRunning);

  cluster.apply({MoveKind::kCrashCoordinator});
  cluster.apply({MoveKind::kStartCoordinator});
  EXPECT_EQ(cluster.phase(), JobPhase::kStopping);
  cluster.run_for(20s);

  EXPECT_EQ(cluster.phase(), JobPhase::kCancelled);
  EXPECT_EQ(cluster.job()->generation, 1u);
  EXPECT_EQ(cluster.job()->text, "stopped on request");
  EXPECT_EQ(cluster.node(0).workers.phase, test::Workers::Phase::kNone);
  EXPECT_EQ(cluster.violation(), "");
}

TEST(CoordinatorDurable, TheNextCoordinatorStopsAsHardAsWasAskedFor) {
  for (const bool kill : {false, true}) {
    VirtualCluster cluster(options_of(2, 2, 2));
    cluster.settle();
    stop_written(cluster, kill, kill ? std::nullopt : std::optional<Milliseconds>(500ms));
    cluster.keeps_sent = true;

    cluster.apply({MoveKind::kCrashCoordinator});
    cluster.apply({MoveKind::kStartCoordinator});
    while (cluster.sent().empty()) move_on(cluster);
    cluster.run_for(5s);

    int num_stops = 0;
    for (const auto& [node, message] : cluster.sent()) {
      const auto* stop = std::get_if<Stop>(&message.body);
      if (stop == nullptr) continue;
      ++num_stops;
      EXPECT_EQ(stop->kill, kill);
      EXPECT_EQ(stop->grace, kill ? 1s : 500ms);
    }
    EXPECT_EQ(num_stops, 2) << kill;
  }
}

TEST(CoordinatorDurable, AJobThatWasStoppedBeforeItHadNodesEndsWithTheNextCoordinator) {
  VirtualCluster cluster = with_nodes_up(options_of(2, 2, 2), 0);
  ASSERT_EQ(cluster.phase(), JobPhase::kGathering);
  stop_written(cluster, false);
  ASSERT_TRUE(cluster.job()->ending);

  cluster.apply({MoveKind::kCrashCoordinator});
  cluster.apply({MoveKind::kStartCoordinator});
  cluster.run_for(1s);

  EXPECT_EQ(cluster.phase(), JobPhase::kCancelled);
}

TEST(CoordinatorDurable, AStopThatWasNotWrittenIsNotKnownToTheNextCoordinatorNorToAnybody) {
  VirtualCluster cluster(options_of(2, 2, 2));
  cluster.settle();
  cluster.stop_job(false);

  cluster.apply({MoveKind::kCrashCoordinator});
  cluster.apply({MoveKind::kStartCoordinator});
  cluster.run_for(20s);

  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_EQ(cluster.job()->generation, 1u);
}

TEST(CoordinatorDurable, AJobThatEndedStaysSoWithTheNextCoordinator) {
  VirtualCluster cluster(options_of(2, 2, 2));
  cluster.settle();
  cluster.node(0).workers.ends_at = cluster.node(1).workers.ends_at = cluster.now() + 1s;
  while (!cluster.has_ended()) move_on(cluster);

  cluster.apply({MoveKind::kCrashCoordinator});
  cluster.apply({MoveKind::kStartCoordinator});
  cluster.run_for(20s);

  EXPECT_EQ(cluster.phase(), JobPhase::kSucceeded);
  EXPECT_TRUE(cluster.node(0).member.jobs.empty());
  EXPECT_EQ(cluster.violation(), "");
}

TEST(CoordinatorDurable, Fault59AStopThatCannotBeWrittenIsRefusedAndTheJobGoesOn) {
  VirtualCluster cluster(options_of(2, 2, 2));
  cluster.settle();
  cluster.set_disk_full(true);

  cluster.stop_job(false);
  cluster.run_for(10s);
  EXPECT_THAT(cluster.reports(),
              Contains("reply refused the stop cannot be written down, so the job goes on"));
  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  cluster.set_disk_full(false);
  cluster.stop_job(false);
  cluster.run_for(10s);

  EXPECT_EQ(cluster.phase(), JobPhase::kCancelled);
}

TEST(CoordinatorDurable, Fault59AnEndIsToldOnceTheDiskHasRoomAgain) {
  VirtualCluster cluster(options_of(2, 2, 2));
  cluster.settle();
  cluster.node(0).workers.ends_at = cluster.node(1).workers.ends_at = cluster.now() + 1s;
  cluster.set_disk_full(true);

  cluster.run_for(30s);
  EXPECT_EQ(cluster.phase(), JobPhase::kRunning);
  EXPECT_EQ(cluster.job()->text, "its end cannot be written down: every rank ended with 0");
  cluster.set_disk_full(false);
  cluster.run_for(6s);

  EXPECT_EQ(cluster.phase(), JobPhase::kSucceeded);
  EXPECT_EQ(cluster.job()->generation, 1u);
}

TEST(CoordinatorDurable,
     Fault59AJobThatCannotCommitLetsItsWorkersGoAndFailsOnceTheDiskHasRoomAgain) {
  ClusterOptions options = options_of(2, 2, 2);
  options.job.restart.regroup_timeout = 60s;
  VirtualCluster cluster(options);
  while (cluster.phase() != JobPhase::kPreparing) cluster.apply(cluster.moves(1).front());
  cluster.set_disk_full(true);

  cluster.run_for(80s);
  EXPECT_EQ(cluster.phase(), JobPhase::kStopping);
  EXPECT_EQ(cluster.node(0).workers.phase, test::Workers::Phase::kNone);
  cluster.set_disk_full(false);
  cluster.run_for(6s);

  EXPECT_EQ(cluster.phase(), JobPhase::kFailed);
  EXPECT_EQ(cluster.job()->text, "all nodes are ready, but the commit cannot be written");
}

}  // namespace
}  // namespace accel::agent::coordinator_durable_test
