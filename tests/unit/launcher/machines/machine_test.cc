// Whole jobs on several machines, without a process, a socket or a clock.

#include "launcher/start/machines/board/agreement.h"
#include "tests/unit/launcher/machines/machines_fixture.h"

namespace accel::launcher::machine_test {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

class Machines : public MachinesFixture {};

template <typename T>
const T* first(const Launcher& launcher) {
  for (const auto& action : launcher.actions) {
    if (const auto* found = std::get_if<T>(&action)) return found;
  }
  return nullptr;
}

TEST_F(Machines, StartTogetherWithTheRanksThatTheirWorkersGiveThem) {
  auto& a = add(card_of(0, 3, 2));
  auto& b = add(card_of(1, 3, 1));
  auto& c = add(card_of(2, 3, 3));
  steps(8);
  const int first_ranks[] = {0, 2, 3};
  for (int i = 0; i < 3; ++i) {
    const auto* prepare = first<PrepareWorkers>(*launchers_[static_cast<std::size_t>(i)]);
    ASSERT_NE(prepare, nullptr);
    EXPECT_EQ(prepare->first_rank, first_ranks[i]);
    EXPECT_EQ(prepare->world_size, 6);
  }
  EXPECT_TRUE(a.machine.is_running() && b.machine.is_running() && c.machine.is_running());
}

TEST_F(Machines, NothingStartsBeforeAllAreReady) {
  auto& a = add(card_of(0, 2));
  auto& b = add(card_of(1, 2));
  b.prepares = false;
  steps(10);
  EXPECT_EQ(a.count<StartWorkers>(), 0);
  b.machine.workers_ready();
  steps(4);
  EXPECT_EQ(a.count<StartWorkers>(), 1);
  EXPECT_EQ(b.count<StartWorkers>(), 1);
}

TEST_F(Machines, WorkersThatCannotBePreparedEndTheJobForAll) {
  auto& a = add(card_of(0, 2));
  auto& b = add(card_of(1, 2));
  b.prepares = false;
  steps(8);
  b.machine.workers_not_ready(Error(ErrorCode::kPreflightFailed, "the GPUs are too hot"));
  steps(6);
  for (const auto* launcher : {&a, &b}) {
    ASSERT_TRUE(launcher->machine.verdict());
    EXPECT_EQ(launcher->machine.verdict()->kind, VerdictKind::kFailed);
    EXPECT_THAT(launcher->machine.verdict()->text,
                HasSubstr("machine 1 (host-1, 10.0.0.2): the GPUs are too hot"));
    EXPECT_EQ(launcher->count<StartWorkers>(), 0);
    EXPECT_EQ(launcher->count<Leave>(), 1);
  }
}

TEST_F(Machines, LeaveWithSuccessWhenAllWorkersHaveEnded) {
  auto& a = add(card_of(0, 2));
  auto& b = add(card_of(1, 2));
  steps(8);
  a.machine.workers_ended(outcome_with(0));
  steps(80);
  EXPECT_FALSE(a.machine.verdict());  // it waits for the other
  b.machine.workers_ended(outcome_with(0));
  steps(6);
  EXPECT_EQ(a.machine.verdict()->kind, VerdictKind::kSucceeded);
  EXPECT_EQ(a.machine.verdict()->exit_code, 0);
  EXPECT_EQ(b.count<Leave>(), 1);
  EXPECT_TRUE(a.leader->is_done());
}

TEST_F(Machines, AFailureStopsTheOthersAndIsNamedEverywhere) {
  auto& a = add(card_of(0, 2));
  auto& b = add(card_of(1, 2));
  steps(8);
  b.machine.worker_failed(failed_worker(1, 7));
  steps(2);
  EXPECT_EQ(a.count<StopWorkers>(), 1);
  b.machine.workers_ended(outcome_with(7));
  a.machine.workers_ended(outcome_with(143));
  steps(4);
  for (const auto* launcher : {&a, &b}) {
    EXPECT_EQ(launcher->machine.verdict()->exit_code, 7);
    EXPECT_EQ(launcher->machine.verdict()->machine, 1);
    EXPECT_THAT(launcher->machine.verdict()->text,
                HasSubstr("machine 1 (host-1, 10.0.0.2): rank 1 ended with exit code 7"));
  }
}

TEST_F(Machines, AFailureWithRestartsLeftBeginsAgainOnAll) {
  auto& a = add(card_of(0, 2), {.max_restarts = 1});
  auto& b = add(card_of(1, 2));
  steps(8);
  b.machine.worker_failed(failed_worker(1, 7));
  b.machine.workers_ended(outcome_with(7));
  steps(2);
  a.machine.workers_ended(outcome_with(143));
  steps(4);
  EXPECT_EQ(a.count<BeginAgain>(), 1);
  EXPECT_EQ(b.count<BeginAgain>(), 1);
  EXPECT_EQ(a.count<Leave>() + b.count<Leave>(), 0);
}

TEST_F(Machines, TheLastRestartIsTheLast) {
  auto& a = add(card_of(0, 2), {.restart_count = 1, .max_restarts = 1});
  auto& b = add(card_of(1, 2));
  steps(8);
  b.machine.worker_failed(failed_worker(1, 7));
  b.machine.workers_ended(outcome_with(7));
  steps(2);
  a.machine.workers_ended(outcome_with(143));
  steps(4);
  EXPECT_EQ(a.machine.verdict()->kind, VerdictKind::kFailed);
  EXPECT_EQ(a.machine.verdict()->code, static_cast<int>(ErrorCode::kRestartsExhausted));
}

TEST_F(Machines, ASignalOnOneStopsAll) {
  auto& a = add(card_of(0, 2));
  auto& b = add(card_of(1, 2));
  steps(8);
  const auto actions = b.machine.asked_to_stop(2, "SIGINT");
  ASSERT_EQ(actions.size(), 1U);
  EXPECT_EQ(std::get<StopWorkers>(actions[0]).signal, 2);
  steps(2);
  EXPECT_EQ(a.count<StopWorkers>(), 1);
  a.machine.workers_ended(outcome_with(143));
  b.machine.workers_ended(outcome_with(130));
  steps(4);
  EXPECT_EQ(a.machine.verdict()->kind, VerdictKind::kStopped);
  EXPECT_EQ(a.machine.verdict()->exit_code, 130);
  EXPECT_THAT(a.machine.verdict()->text, HasSubstr("machine 1"));
}

// SLURM signals every process: a worker may have saved and ended before its launcher has heard of it.
TEST_F(Machines, AWorkerThatHasSavedForItsPreemptionStopsTheJobAndIsNoFailure) {
  auto& a = add(card_of(0, 2), {.max_restarts = 1});
  auto& b = add(card_of(1, 2));
  steps(8);
  b.machine.worker_preempted(failed_worker(1, 85));
  EXPECT_TRUE(b.machine.asked_to_stop(15, "SIGTERM").empty());  // the notice itself: is known
  steps(2);
  EXPECT_EQ(a.count<StopWorkers>(), 1);
  EXPECT_EQ(b.count<StopWorkers>(), 0);  // its shim does that
  supervisor::JobOutcome saved = outcome_with(85);
  saved.has_saved = true;
  a.machine.workers_ended(saved);
  b.machine.workers_ended(saved);
  steps(4);
  for (const auto* launcher : {&a, &b}) {
    EXPECT_EQ(launcher->count<BeginAgain>(), 0);
    EXPECT_EQ(launcher->machine.verdict()->kind, VerdictKind::kStopped);
    EXPECT_EQ(launcher->machine.verdict()->exit_code, 85);
    EXPECT_THAT(launcher->machine.verdict()->text,
                HasSubstr("rank 1 has saved for its preemption"));
  }
}

TEST_F(Machines, OneThatIsStoppedBeforeTheJobBeginsLeavesItsPlaceFree) {
  auto& a = add(card_of(0, 3));
  auto& b = add(card_of(1, 3));
  steps(4);
  ASSERT_TRUE(b.machine.asked_to_stop(2, "SIGINT").empty());
  steps(2);
  EXPECT_EQ(b.count<Leave>(), 1);
  b.is_alive = false;
  auto again = card_of(1, 3);
  again.id = "another";
  auto& c = add(again);
  add(card_of(2, 3));
  steps(10);
  EXPECT_TRUE(a.machine.is_running());
  EXPECT_TRUE(c.machine.is_running());
}

TEST_F(Machines, OneThatVanishesBeforeTheJobBeginsLeavesItsPlaceFree) {
  auto& a = add(card_of(0, 3));
  auto& b = add(card_of(1, 3));
  steps(4);
  b.is_alive = false;
  steps(60);
  auto again = card_of(1, 3);
  again.id = "another";
  auto& c = add(again);
  add(card_of(2, 3));
  steps(10);
  EXPECT_TRUE(a.machine.is_running());
  EXPECT_TRUE(c.machine.is_running());
}

TEST_F(Machines, AMachineRankThatIsGivenTwiceIsAnErrorOnAll) {
  auto& a = add(card_of(0, 3));
  auto& b = add(card_of(1, 3));
  auto twice = card_of(1, 3);
  twice.host = "host-x";
  twice.id = "another";
  auto& c = add(twice);
  steps(6);
  const auto text =
      HasSubstr("machine rank 1 was given twice: to host-1 (10.0.0.2) and to host-x (10.0.0.2)");
  ASSERT_TRUE(a.machine.verdict() && b.machine.verdict() && c.machine.error());
  EXPECT_THAT(a.machine.verdict()->text, text);
  EXPECT_THAT(b.machine.verdict()->text, text);
  EXPECT_THAT(c.machine.error()->message(), text);
  EXPECT_EQ(a.machine.verdict()->exit_code, 2);
}

TEST_F(Machines, OneThatComesToARunningJobIsRefusedAlone) {
  auto& a = add(card_of(0, 2));
  auto& b = add(card_of(1, 2));
  steps(8);
  auto twice = card_of(1, 2);
  twice.id = "another";
  auto& c = add(twice);
  steps(6);
  EXPECT_TRUE(a.machine.is_running() && b.machine.is_running());
  ASSERT_TRUE(c.machine.error());
  EXPECT_THAT(c.machine.error()->message(), HasSubstr("given twice"));
}

TEST_F(Machines, ANumberOfMachinesThatDisagreesIsAnErrorOnAll) {
  auto& a = add(card_of(0, 2));
  auto& b = add(card_of(1, 3));
  steps(6);
  const auto text = HasSubstr(
      "machine 1 (host-1, 10.0.0.2) has --num_machines 3, but machine 0 (host-0, 10.0.0.1) has "
      "--num_machines 2");
  ASSERT_TRUE(a.machine.verdict() && b.machine.error());
  EXPECT_THAT(a.machine.verdict()->text, text);
  EXPECT_THAT(b.machine.error()->message(), text);
}

TEST_F(Machines, ANumberOfProcessesThatDisagreesIsAnErrorOnAll) {
  auto& a = add(card_of(0, 2, 2, 4));
  auto& b = add(card_of(1, 2, 3, 6));
  steps(6);
  ASSERT_TRUE(a.machine.verdict() && b.machine.error());
  EXPECT_THAT(a.machine.verdict()->text, HasSubstr("has --num_processes 6, but"));
}

TEST_F(Machines, ProcessesThatDoNotDivideAreAnErrorOnAllThatComeWithin10Seconds) {
  auto& a = add(card_of(0, 2, 2, 5));
  steps(90);  // 9 s
  auto& b = add(card_of(1, 2, 2, 5));
  steps(10);
  ASSERT_TRUE(a.machine.verdict() && b.machine.verdict());
  EXPECT_THAT(b.machine.verdict()->text, HasSubstr("5 processes do not divide over 2 machines"));
  EXPECT_THAT(b.machine.verdict()->remedy, HasSubstr("--num_processes 4 or 6"));
  EXPECT_TRUE(a.leader->is_done());
}

TEST_F(Machines, AnotherJobAtTheSameEndpointIsNamed) {
  auto& a = add(card_of(0, 2));
  auto other = card_of(1, 2);
  other.run_id = "night\x1b[2J";
  auto& b = add(other);
  steps(6);
  ASSERT_TRUE(a.machine.verdict() && b.machine.error());
  EXPECT_THAT(b.machine.error()->message(),
              HasSubstr("machine 1 (host-1, 10.0.0.2) has --rdzv_id 'night?[2J', but machine 0"));
  EXPECT_FALSE(a.machine.is_running());
}

TEST_F(Machines, WorkersThatAreNotTheShareOfAllProcessesAreAnErrorOnAll) {
  for (const bool main_counts : {true, false}) {
    launchers_.clear();
    board_ = {};
    auto& a = add(main_counts ? card_of(0, 2, 2, 4) : card_of(0, 2, 3));
    auto& b = add(main_counts ? card_of(1, 2, 3) : card_of(1, 2, 2, 4));
    steps(6);
    ASSERT_TRUE(a.machine.verdict() && b.machine.error());
    EXPECT_THAT(a.machine.verdict()->text, HasSubstr("has 3 workers, but machine"));
    EXPECT_THAT(a.machine.verdict()->text, HasSubstr("has --num_processes 4 on 2 machines, 2 on"));
    EXPECT_EQ(a.machine.verdict()->exit_code, 2);
  }
}

TEST_F(Machines, NumbersThatDisagreeBeyondMachine0AreAnErrorOnAll) {
  auto& a = add(card_of(0, 3, 2));
  auto& b = add(card_of(1, 3, 2, 6));
  auto& c = add(card_of(2, 3, 4));
  steps(8);
  for (const auto* launcher : {&a, &b, &c}) {
    ASSERT_TRUE(launcher->machine.verdict());
    EXPECT_THAT(launcher->machine.verdict()->text,
                HasSubstr("machine 2 (host-2, 10.0.0.3) has 4 workers, but machine 1 (host-1"));
    EXPECT_EQ(launcher->count<StartWorkers>(), 0);
  }
}

TEST_F(Machines, ShowNothingOfAnotherMachineThatATerminalWouldObey) {
  auto evil = card_of(1, 3);
  evil.host = "\x1b]0;owned\x07";
  evil.address =
      "\x9b"
      "2J";
  EXPECT_EQ(evil.describe(), "machine 1 (?]0;owned?, ?2J)");
  evil.address = "10.0.0.2";
  add(card_of(0, 3));
  add(evil);
  auto twice = card_of(1, 3);
  twice.id = "another";
  auto& c = add(twice);
  steps(6);
  ASSERT_TRUE(c.machine.error());
  EXPECT_THAT(c.machine.error()->message(), HasSubstr("given twice: to ?]0;owned? (10.0.0.2)"));
  JobPlan plan;
  plan.hosts = {"\x1b[1m"};
  EXPECT_EQ(plan.describe(0), "machine 0 (?[1m)");
}

TEST_F(Machines, AnotherVersionIsNamed) {
  auto& a = add(card_of(0, 2));
  auto other = card_of(1, 2);
  other.version = MachineCard::kVersion + 1;
  auto& b = add(other);
  steps(6);
  ASSERT_TRUE(a.machine.verdict() && b.machine.error());
  EXPECT_EQ(b.machine.error()->code(), ErrorCode::kProtocol);
}

TEST_F(Machines, OneOnTheCpuAndOthersOnGpusAreNoJob) {
  auto main = card_of(0, 3);
  main.device = ComputeDevice::kGpu;
  auto on_cpu = card_of(1, 3);
  on_cpu.device = ComputeDevice::kCpu;
  auto on_gpu = card_of(2, 3);
  on_gpu.device = ComputeDevice::kGpu;
  auto& a = add(main);
  auto& b = add(on_cpu);
  auto& c = add(on_gpu);
  steps(8);
  ASSERT_TRUE(a.machine.verdict() && b.machine.error() && c.machine.verdict());
  const std::string expected =
      on_cpu.describe() + " computes on the CPU, but " + main.describe() + " on GPUs";
  EXPECT_EQ(a.machine.verdict()->text, expected);
  EXPECT_EQ(b.machine.error()->message(), expected);
  EXPECT_EQ(c.machine.verdict()->text, expected);
}

TEST_F(Machines, ThatDoNotSayWhatTheyComputeOnAgree) {
  auto said = card_of(0, 2);
  said.device = ComputeDevice::kCpu;
  auto& a = add(said);
  std::string older = to_text(card_of(1, 2));
  const std::string device = R"("device":0,)";
  ASSERT_NE(older.find(device), std::string::npos);
  older.erase(older.find(device), device.size());
  const auto card = card_from(older);
  ASSERT_TRUE(card);
  add(*card);
  steps(10);
  EXPECT_TRUE(a.machine.is_running());
}

TEST_F(Machines, TakeTheirRanksInTheOrderOfJoins) {
  auto& a = add(card_of(0, 3));
  auto b_card = card_of(0, 3);
  b_card.id = "b";
  auto c_card = card_of(0, 3);
  c_card.id = "c";
  steps(2);
  auto& b = add(b_card, {}, true);
  steps(2);
  auto& c = add(c_card, {}, true);
  steps(10);
  EXPECT_TRUE(a.machine.is_running());
  EXPECT_EQ(b.machine.card().rank, 1);
  EXPECT_EQ(c.machine.card().rank, 2);
  auto d_card = card_of(0, 3);
  d_card.id = "d";
  auto& d = add(d_card, {}, true);
  steps(4);
  ASSERT_TRUE(d.machine.error());
  EXPECT_THAT(d.machine.error()->message(), HasSubstr("one machine more than --nnodes 3"));
  EXPECT_TRUE(a.machine.is_running());
}

TEST_F(Machines, ThatComeAgainTakeTheirFreePlace) {
  auto& a = add(card_of(0, 3));
  auto drawing = card_of(0, 3);
  drawing.id = "b";
  auto& b = add(drawing, {}, true);
  steps(5);
  ASSERT_EQ(b.machine.card().rank, 1);
  ASSERT_TRUE(b.machine.asked_to_stop(2, "SIGINT").empty());
  steps(2);
  EXPECT_EQ(b.count<Leave>(), 1);
  b.is_alive = false;
  drawing.id = "b again";
  auto& again = add(drawing, {}, true);
  steps(5);
  EXPECT_FALSE(again.machine.error());
  drawing.id = "c";
  auto& c = add(drawing, {}, true);
  steps(12);
  EXPECT_TRUE(a.machine.is_running());
  EXPECT_TRUE(again.machine.is_running());
  EXPECT_TRUE(c.machine.is_running());
  EXPECT_EQ(again.machine.card().rank + c.machine.card().rank, 3);
}

TEST_F(Machines, TakeThePlaceThatALostAnswerLeftFree) {
  auto& a = add(card_of(0, 3));
  steps(2);
  supervisor::StoreExchange unheard;
  unheard.counter = board_key::kJoins;
  (void)board_.exchange(unheard);
  for (const char* id : {"b", "c"}) {
    auto drawing = card_of(0, 3);
    drawing.id = id;
    add(drawing, {}, true);
  }
  steps(12);
  EXPECT_TRUE(a.machine.is_running());
}

TEST_F(Machines, WithdrawAlsoWhenAnExchangeIsUnderWay) {
  add(card_of(0, 3));
  auto& b = add(card_of(1, 3));
  steps(4);
  supervisor::StoreExchange under_way;
  b.machine.add_to(under_way);
  const Board answer(under_way, board_.exchange(under_way));
  ASSERT_TRUE(b.machine.asked_to_stop(2, "SIGINT").empty());
  EXPECT_TRUE(b.machine.take(answer).empty());
  steps(2);
  EXPECT_EQ(b.count<Leave>(), 1);
  EXPECT_EQ(board_.values_[board_key::of(board_key::kClaim, 1)], "");
}

TEST_F(Machines, LeaveNothingBehindWhenTheyStopBeforeTheyHaveAPlace) {
  auto drawing = card_of(0, 3);
  drawing.id = "b";
  board_.values_[std::string(board_key::kHost)] = to_text(card_of(0, 3));
  auto& b = add(drawing, {}, true);
  step();
  const auto actions = b.machine.asked_to_stop(2, "SIGINT");
  ASSERT_EQ(actions.size(), 1U);
  EXPECT_TRUE(std::holds_alternative<Leave>(actions[0]));
}

TEST_F(Machines, LeaveWithTheirWorkersStoppedWhenMachine0IsGone) {
  add(card_of(0, 2));
  auto& b = add(card_of(1, 2));
  steps(8);
  const auto actions = b.machine.fail(Error(ErrorCode::kCoordinatorLost, "machine 0 is gone"));
  ASSERT_EQ(actions.size(), 2U);
  EXPECT_TRUE(std::holds_alternative<StopWorkers>(actions[0]));
  EXPECT_TRUE(std::holds_alternative<Leave>(actions[1]));
  EXPECT_TRUE(b.machine.fail(Error(ErrorCode::kCoordinatorLost, "again")).empty());
}

TEST_F(Machines, WaitForTheNewStoreAfterARestart) {
  add(card_of(0, 2));
  auto next = card_of(1, 2);
  next.generation = 1;
  auto& b = add(next);
  steps(10);
  EXPECT_FALSE(b.machine.has_joined());
  EXPECT_FALSE(b.machine.error());
}

// It would end the job that begins again just now.
TEST_F(Machines, ThatComeLateSayNothingToAJobThatHasRestarted) {
  auto main = card_of(0, 2);
  main.generation = 1;
  add(main);
  auto& late = add(card_of(1, 2));
  steps(4);

  ASSERT_TRUE(late.machine.error());
  EXPECT_THAT(late.machine.error()->message(), HasSubstr("runs already, in generation 1"));
  EXPECT_EQ(late.count<Leave>(), 1);
  EXPECT_EQ(board_.values_[std::string(board_key::kFault)], "");
}

TEST_F(Machines, NameTheFlagThatSaidWhichPort) {
  auto main = card_of(0, 2);
  main.generation = 1;
  supervisor::StoreExchange wanted;
  wanted.reads.emplace_back(board_key::kHost);
  for (const char* flag : {"--master-port", "--rdzv-endpoint"}) {
    Machine late(card_of(1, 2), /*draws_rank=*/false, Program::kTorchrun, flag);
    (void)late.take(Board(wanted, {.values = {to_text(main)}}));
    EXPECT_THAT(late.error()->remedy(), EndsWith(std::string("give another ") + flag));
    EXPECT_THAT(rank_is_taken(main, card_of(0, 2), Program::kTorchrun, flag).remedy(),
                EndsWith(std::string("give each a ") + flag + " of its own"));
  }
}

// Of an earlier launcher with this rank: the plan came before its claim was taken back.
TEST_F(Machines, RefuseAPlanForAnotherLauncher) {
  auto& b = add(card_of(1, 2));
  auto earlier = card_of(1, 2);
  earlier.id = "earlier";
  board_.values_[std::string(board_key::kHost)] = to_text(card_of(0, 2));
  steps(3);
  board_.values_[std::string(board_key::kPlan)] = to_text(make_plan({card_of(0, 2), earlier}, 0));
  steps(3);
  EXPECT_EQ(b.count<PrepareWorkers>(), 0);
  ASSERT_TRUE(b.machine.error());
  EXPECT_THAT(b.machine.error()->message(), HasSubstr("is not for this machine"));
}

TEST_F(Machines, DoNotBelieveWhatIsNoRecord) {
  auto& b = add(card_of(1, 2));
  board_.values_[std::string(board_key::kHost)] = "{\"version\": \"one\"}";
  steps(3);
  ASSERT_TRUE(b.machine.error());
  EXPECT_EQ(b.machine.error()->code(), ErrorCode::kProtocol);
}

}  // namespace
}  // namespace accel::launcher::machine_test
