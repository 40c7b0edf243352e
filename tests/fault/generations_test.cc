// Generations that the owner drives, over one shim and over two (faults 42 and 56 of
// docs/reference/faults.md: what one node must do so that no generation runs that nobody wants).

#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/driven_job.h"
#include "tests/support/store_client.h"

namespace accel::test::generations_test {
namespace {

using supervisor::ExitCause;
using supervisor::Finish;
using supervisor::GenerationEnded;
using supervisor::GenerationStarted;
using supervisor::JobOutcome;
using supervisor::OpenStore;
using supervisor::OwnerKind;
using supervisor::Prepared;
using supervisor::PrepareFailed;
using supervisor::PrepareGeneration;
using supervisor::Snapshot;
using supervisor::StartGeneration;
using supervisor::Stop;
using supervisor::StopGeneration;
using supervisor::StopMode;
using supervisor::StoreOpened;
using supervisor::TakeSnapshot;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class Generations : public ::testing::Test {
 protected:
  [[nodiscard]] supervisor::JobSpec job(const std::string& mode, int num_workers = 2) const {
    auto spec = make_job(mode, token_, num_workers);
    spec.control = supervisor::GenerationControl::kOwner;
    spec.stop.grace = std::chrono::milliseconds(200);
    spec.node_id = "node-a";
    return spec;
  }

  const std::string token_ = unique_token();
};

TEST_F(Generations, NothingStartsBeforeItIsPreparedAndStarted) {
  DrivenJob driven(job("exit 0"));

  driven.ask(StartGeneration{.generation = 0});
  driven.ask(TakeSnapshot{});
  const auto parked = driven.wait_for<Snapshot>();
  EXPECT_EQ(parked.state, "parked");
  EXPECT_EQ(parked.stale_requests, 1u);
  driven.ask(PrepareGeneration{.generation = 0, .world_size = 2});
  EXPECT_GT(driven.wait_for<Prepared>().store_port, 0);
  driven.ask(TakeSnapshot{});
  const auto prepared = driven.wait_for<Snapshot>();
  EXPECT_EQ(prepared.state, "prepared");
  EXPECT_THAT(prepared.workers, IsEmpty());

  driven.ask(StartGeneration{.generation = 0});
  EXPECT_THAT(driven.wait_for<GenerationStarted>().pids, SizeIs(2));
  const auto ended = driven.wait_for<GenerationEnded>();
  EXPECT_TRUE(ended.outcome.success);
  EXPECT_TRUE(ended.is_clean);
  EXPECT_THAT(ended.outcome.exits, SizeIs(2));
  driven.ask(Finish{});
  EXPECT_TRUE(driven.wait_for<JobOutcome>().success);
}

TEST_F(Generations, AStoreThatWasOpenedFirstIsThatOfTheGeneration) {
  DrivenJob driven(job("exit 0"));
  driven.ask(OpenStore{.generation = 0});
  const int port = driven.wait_for<StoreOpened>().store_port;
  test::StoreClient client = test::StoreClient::validated(static_cast<std::uint16_t>(port));

  driven.ask(PrepareGeneration{.generation = 0, .world_size = 2});

  EXPECT_EQ(driven.wait_for<Prepared>().store_port, port);
  client.send(test::store_add("joins", 1));
  EXPECT_EQ(client.receive_i64(), 1);  // the connection from before
  driven.ask(StartGeneration{.generation = 0});
  EXPECT_TRUE(driven.wait_for<GenerationEnded>().outcome.success);
  driven.ask(OpenStore{.generation = 1, .port = port, .is_exact_port = true});
  EXPECT_EQ(driven.wait_for<StoreOpened>().store_port, port);
  EXPECT_TRUE(client.is_closed_by_server());
  driven.ask(Finish{});
  EXPECT_TRUE(driven.wait_for<JobOutcome>().success);
}

TEST_F(Generations, AFailureIsToldAndTheOwnerDecidesWhatFollows) {
  DrivenJob driven(job("rank0 exit 9"));
  driven.ask(PrepareGeneration{.generation = 3, .world_size = 2});
  driven.ask(StartGeneration{.generation = 3});

  const auto ended = driven.wait_for<GenerationEnded>();

  EXPECT_EQ(ended.generation, 3);
  EXPECT_FALSE(ended.outcome.success);
  ASSERT_TRUE(ended.outcome.first_failure);
  EXPECT_EQ(ended.outcome.first_failure->exit_code, 9);
  driven.ask(PrepareGeneration{.generation = 4, .restart_count = 1, .world_size = 2});
  EXPECT_EQ(driven.wait_for<Prepared>().generation, 4);
  driven.ask(Finish{});
  EXPECT_EQ(driven.wait_for<JobOutcome>().restarts, 1);
  EXPECT_THAT(processes_with(token_), IsEmpty());
}

TEST_F(Generations, WorkersLearnWhoTheyAreAmongAllNodes) {
  auto spec = job("environment", 2);
  DrivenJob driven(spec);
  driven.ask(PrepareGeneration{.generation = 7,
                               .restart_count = 2,
                               .first_rank = 4,
                               .world_size = 6,
                               .node_rank = 2,
                               .num_nodes = 3,
                               .hosts_store = false});
  EXPECT_EQ(driven.wait_for<Prepared>().store_port, 0);
  driven.ask(StartGeneration{.generation = 7, .master_addr = "192.0.2.9", .master_port = 29511});

  const auto ended = driven.wait_for<GenerationEnded>();

  ASSERT_THAT(ended.outcome.exits, SizeIs(2));
  for (const auto& exit : ended.outcome.exits) {
    const std::string rank = std::to_string(exit.global_rank);
    const std::string local = std::to_string(exit.global_rank - 4);
    for (const std::string& line : {"RANK=" + rank,
                                    "LOCAL_RANK=" + local,
                                    std::string("WORLD_SIZE=6"),
                                    std::string("LOCAL_WORLD_SIZE=2"),
                                    std::string("GROUP_RANK=2"),
                                    std::string("GROUP_WORLD_SIZE=3"),
                                    std::string("MASTER_ADDR=192.0.2.9"),
                                    std::string("MASTER_PORT=29511"),
                                    std::string("TORCHELASTIC_RESTART_COUNT=2"),
                                    std::string("TORCHELASTIC_USE_AGENT_STORE=True"),
                                    std::string("ACCEL_GENERATION=7"),
                                    std::string("ACCEL_NODE_ID=node-a")}) {
      EXPECT_THAT(exit.tail, HasSubstr("\n" + line + "\n"));
    }
  }
}

TEST_F(Generations, Fault42RequestsOfAnotherGenerationChangeNothingAndAreCounted) {
  DrivenJob driven(job("pause"));
  driven.ask(PrepareGeneration{.generation = 5, .world_size = 2});
  driven.ask(StartGeneration{.generation = 5});
  (void)driven.wait_for<GenerationStarted>();

  driven.ask(StopGeneration{.generation = 4, .mode = StopMode::kKill});
  driven.ask(StartGeneration{.generation = 4});
  driven.ask(PrepareGeneration{.generation = 4, .world_size = 2});
  driven.ask(StartGeneration{.generation = 5});
  driven.ask(TakeSnapshot{});

  const auto snapshot = driven.wait_for<Snapshot>();
  EXPECT_EQ(snapshot.state, "running");
  EXPECT_EQ(snapshot.generation, 5);
  EXPECT_EQ(snapshot.stale_requests, 4u);
  driven.ask(StopGeneration{.generation = 5, .mode = StopMode::kKill});
  EXPECT_EQ(driven.wait_for<GenerationEnded>().generation, 5);
}

TEST_F(Generations, APreparationOverARunningGenerationIsRefused) {
  DrivenJob driven(job("pause"));
  driven.ask(PrepareGeneration{.generation = 0, .world_size = 2});
  driven.ask(StartGeneration{.generation = 0});
  (void)driven.wait_for<GenerationStarted>();

  driven.ask(PrepareGeneration{.generation = 1, .world_size = 2});

  EXPECT_THAT(driven.wait_for<PrepareFailed>().error.message(), HasSubstr("has not ended"));
}

TEST_F(Generations, Fault47APortThatIsTakenIsToldAndAnotherTryWorks) {
  DrivenJob holder(job("pause"));
  holder.ask(PrepareGeneration{.generation = 0, .world_size = 2});
  const int port = holder.wait_for<Prepared>().store_port;
  DrivenJob driven(job("exit 0"));

  driven.ask(
      PrepareGeneration{.generation = 0, .world_size = 2, .port = port, .is_exact_port = true});
  const auto failed = driven.wait_for<PrepareFailed>();
  EXPECT_EQ(failed.error.code(), ErrorCode::kPortInUse);
  driven.ask(PrepareGeneration{.generation = 0, .world_size = 2});

  EXPECT_GT(driven.wait_for<Prepared>().store_port, 0);
}

TEST_F(Generations, ImpossiblePreparationsAreRefused) {
  DrivenJob driven(job("exit 0"));
  const PrepareGeneration impossible[] = {
      {.first_rank = 1, .world_size = 2},
      {.first_rank = -1, .world_size = 8},
      {.world_size = 0},
      {.world_size = 2, .node_rank = 1, .num_nodes = 1},
      {.restart_count = -1, .world_size = 2},
      {.world_size = 2, .port = 70000},
      {.world_size = 2, .bind_address = "nowhere"},
      {.world_size = 2, .members = {"gpu-01"}},
  };
  for (const auto& wanted : impossible) {
    driven.ask(wanted);
    EXPECT_EQ(driven.wait_for<PrepareFailed>().error.code(), ErrorCode::kInvalidArgument);
  }
}

TEST_F(Generations, Fault56APreparedGenerationThatIsStoppedNeverRuns) {
  DrivenJob driven(job("exit 0"));
  driven.ask(PrepareGeneration{.generation = 0, .world_size = 2});
  (void)driven.wait_for<Prepared>();

  driven.ask(StopGeneration{.generation = 0});
  EXPECT_THAT(driven.wait_for<GenerationEnded>().outcome.exits, IsEmpty());
  driven.ask(StartGeneration{.generation = 0});
  driven.ask(Finish{});

  (void)driven.wait_for<JobOutcome>();
  EXPECT_THAT(driven.all<GenerationStarted>(), IsEmpty());
}

TEST_F(Generations, AStoppedGenerationIsNoFailureAndItsStubbornWorkersAreKilled) {
  DrivenJob driven(job("family"));
  driven.ask(PrepareGeneration{.generation = 0, .world_size = 2});
  driven.ask(StartGeneration{.generation = 0});
  (void)driven.wait_for<GenerationStarted>();

  driven.ask(StopGeneration{.generation = 0, .grace = std::chrono::milliseconds(50)});
  const auto ended = driven.wait_for<GenerationEnded>();

  EXPECT_FALSE(ended.outcome.first_failure);
  EXPECT_EQ(ended.outcome.reason, "stopped");
  EXPECT_TRUE(ended.is_clean);
}

TEST_F(Generations, AJobThatIsStoppedWhileParkedEnds) {
  DrivenJob driven(job("exit 0"));

  driven.ask(Stop{.mode = StopMode::kTerminate, .signal = SIGTERM});

  EXPECT_EQ(driven.wait_for<JobOutcome>().exit_code, 128 + SIGTERM);
}

TEST_F(Generations, Fault27AnOwnerThatIsGoneEndsARunningGeneration) {
  {
    DrivenJob driven(job("family"));
    driven.ask(PrepareGeneration{.generation = 0, .world_size = 2});
    driven.ask(StartGeneration{.generation = 0});
    (void)driven.wait_for<GenerationStarted>();
  }
  EXPECT_THAT(processes_with(token_), IsEmpty());
}

TEST_F(Generations, TheStoreServesOtherNodesAfterTheWorkersOfItsOwnHaveEnded) {
  DrivenJob driven(job("exit 0"));
  driven.ask(PrepareGeneration{.generation = 0, .world_size = 2});
  const int port = driven.wait_for<Prepared>().store_port;
  driven.ask(StartGeneration{.generation = 0});
  (void)driven.wait_for<GenerationEnded>();

  EXPECT_TRUE(can_connect("127.0.0.1", port));
  driven.ask(Finish{});
  (void)driven.wait_for<JobOutcome>();
  EXPECT_FALSE(can_connect("127.0.0.1", port));
}

TEST_F(Generations, TheSweepOfOneNodeSparesTheOtherOnTheSameMachine) {
  auto other_spec = job("pause");
  other_spec.node_id = "node-b";
  DrivenJob first(job("exit 0"));
  DrivenJob second(other_spec);
  for (DrivenJob* node : {&first, &second}) {
    node->ask(PrepareGeneration{.generation = 0, .world_size = 2});
    node->ask(StartGeneration{.generation = 0});
    (void)node->wait_for<GenerationStarted>();
  }

  first.ask(Finish{});
  (void)first.wait_for<JobOutcome>();
  second.ask(TakeSnapshot{});

  for (const auto& worker : second.wait_for<Snapshot>().workers) EXPECT_TRUE(worker.is_alive);
}

// The second job is the younger one: by their names alone the sweep of the first would find it.
TEST_F(Generations, Fault10TheSweepOfAJobSparesAnotherOneOfItsName) {
  DrivenJob first(job("family"));
  DrivenJob second(job("pause"));
  for (DrivenJob* one : {&first, &second}) {
    one->ask(PrepareGeneration{.generation = 0, .world_size = 2});
    one->ask(StartGeneration{.generation = 0});
    (void)one->wait_for<GenerationStarted>();
  }

  first.ask(Stop{.mode = StopMode::kKill});
  (void)first.wait_for<JobOutcome>();
  second.ask(TakeSnapshot{});

  for (const auto& worker : second.wait_for<Snapshot>().workers) EXPECT_TRUE(worker.is_alive);
}

TEST_F(Generations, Fault27AShimThatIsLostSparesAnotherJobOfItsName) {
  const auto spec = job("pause");
  const auto start = [&] {
    auto host = supervisor::start_shim(
        spec, {.shim_path = build_path("bin/accel-shim"), .owner = OwnerKind::kManyJobs});
    if (!host) throw std::runtime_error(host.error().render());
    return DrivenJob(*std::move(host));
  };
  DrivenJob first = start();
  DrivenJob second = start();
  for (DrivenJob* one : {&first, &second}) {
    one->ask(PrepareGeneration{.generation = 0, .world_size = 2});
    one->ask(StartGeneration{.generation = 0});
    (void)one->wait_for<GenerationStarted>();
  }
  const auto hello = first.all<supervisor::Hello>();
  ASSERT_THAT(hello, SizeIs(1));

  ::kill(static_cast<pid_t>(hello[0].pid), SIGKILL);
  EXPECT_THROW((void)first.wait_for<JobOutcome>(), std::runtime_error);
  second.ask(TakeSnapshot{});

  for (const auto& worker : second.wait_for<Snapshot>().workers) EXPECT_TRUE(worker.is_alive);
}

}  // namespace
}  // namespace accel::test::generations_test
