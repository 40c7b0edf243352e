// What machine 0 decides when machines are late, silent, suspended or lost.

#include "tests/unit/launcher/machines/machines_fixture.h"

namespace accel::launcher::leader_test {
namespace {

using ::testing::HasSubstr;

class LeaderOfMachines : public MachinesFixture {
 protected:
  void SetUp() override {
    a_ = &add(card_of(0, 3), options_);
    b_ = &add(card_of(1, 3));
    c_ = &add(card_of(2, 3));
  }
  void run() {
    steps(8);
    ASSERT_TRUE(a_->machine.is_running());
  }

  LeaderOptions options_;
  Launcher* a_ = nullptr;
  Launcher* b_ = nullptr;
  Launcher* c_ = nullptr;
};

TEST_F(LeaderOfMachines, NamesTheMachinesThatDidNotCome) {
  c_->is_alive = false;
  steps(20);
  EXPECT_EQ(a_->leader->missing(), "machine 2");
  EXPECT_EQ(a_->leader->num_joined(), 2);
  steps(6000);
  ASSERT_TRUE(b_->machine.verdict());
  EXPECT_THAT(b_->machine.verdict()->text,
              HasSubstr("2 of 3 machines joined within 600 s; missing: machine 2"));
  EXPECT_EQ(b_->machine.verdict()->code, static_cast<int>(ErrorCode::kRendezvousTimeout));
  EXPECT_TRUE(a_->leader->is_done());
}

TEST_F(LeaderOfMachines, CountsTheTimeBeforeItsFirstLookAsTimeToJoin) {
  c_->is_alive = false;
  a_->leader = std::make_unique<Leader>(card_of(0, 3), LeaderOptions{.waited = 590s});
  steps(95);
  EXPECT_FALSE(b_->machine.verdict());
  steps(10);
  ASSERT_TRUE(b_->machine.verdict());
  EXPECT_THAT(b_->machine.verdict()->text, HasSubstr("joined within 600 s; missing: machine 2"));
}

TEST_F(LeaderOfMachines, LeavesASecondToJoinHoweverLateItsFirstLookIs) {
  a_->leader = std::make_unique<Leader>(card_of(0, 3), LeaderOptions{.waited = 700s});
  steps(8);
  EXPECT_TRUE(a_->machine.is_running());
}

TEST_F(LeaderOfMachines, DeclaresAMachineLostAfterFiveSecondsOfSilence) {
  run();
  c_->is_alive = false;
  steps(48);
  EXPECT_EQ(b_->count<StopWorkers>(), 0);
  steps(6);
  EXPECT_EQ(b_->count<StopWorkers>(), 1);
  a_->machine.workers_ended(outcome_with(143));
  b_->machine.workers_ended(outcome_with(143));
  steps(4);
  EXPECT_THAT(b_->machine.verdict()->text,
              HasSubstr("machine 2 (host-2, 10.0.0.3) does not answer any more"));
  EXPECT_EQ(b_->machine.verdict()->code, static_cast<int>(ErrorCode::kNodeLost));
  EXPECT_NE(b_->machine.verdict()->exit_code, 0);
}

// Its peers' workers fail at once, seconds before the machine is lost.
TEST_F(LeaderOfMachines, TakesTheLostMachineForTheCauseOfFailuresThatFollowed) {
  run();
  c_->is_alive = false;
  step();
  a_->machine.worker_failed(failed_worker(0, 1));
  a_->machine.workers_ended(outcome_with(1));
  steps(3);
  b_->machine.workers_ended(outcome_with(143));
  steps(60);
  ASSERT_TRUE(b_->machine.verdict());
  EXPECT_EQ(b_->machine.verdict()->machine, 2);
  EXPECT_EQ(b_->machine.verdict()->code, static_cast<int>(ErrorCode::kNodeLost));
}

TEST_F(LeaderOfMachines, KeepsTheFailureWhenAMachineIsLostLongAfterIt) {
  run();
  a_->machine.worker_failed(failed_worker(0, 9));
  a_->machine.workers_ended(outcome_with(9));
  steps(40);
  c_->is_alive = false;
  b_->machine.workers_ended(outcome_with(143));
  steps(60);
  ASSERT_TRUE(b_->machine.verdict());
  EXPECT_EQ(b_->machine.verdict()->machine, 0);
  EXPECT_EQ(b_->machine.verdict()->exit_code, 9);
}

TEST_F(LeaderOfMachines, WaitsForALauncherThatItsUserHasStopped) {
  run();
  c_->machine.suspend(true);
  step();
  c_->is_alive = false;
  steps(600);
  EXPECT_EQ(b_->count<StopWorkers>(), 0);
}

TEST_F(LeaderOfMachines, LosesOneThatIsSuspendedForTooLong) {
  run();
  c_->machine.suspend(true);
  step();
  c_->is_alive = false;
  steps(35'900);
  EXPECT_EQ(b_->count<StopWorkers>(), 0);
  steps(200);
  EXPECT_EQ(b_->count<StopWorkers>(), 1);
}

TEST_F(LeaderOfMachines, NoticesALossWhenItLooksSeldom) {
  run();
  c_->is_alive = false;
  steps(10, 1200ms);
  EXPECT_EQ(b_->count<StopWorkers>(), 1);
}

TEST_F(LeaderOfMachines, NoticesALossOfManyMachinesAsSoonAsOfFew) {
  run();
  c_->is_alive = false;
  const auto looks = static_cast<int>(kLostAfter / kLongestTick) + 3;
  steps(looks, tick_pause(1'000'000, true));
  EXPECT_EQ(b_->count<StopWorkers>(), 1);
}

TEST_F(LeaderOfMachines, CallsNobodySilentForItsOwnPause) {
  run();
  now_ += 60s;
  steps(4);
  EXPECT_EQ(b_->count<StopWorkers>(), 0);
}

TEST_F(LeaderOfMachines, DoesNotLoseAMachineWhoseWorkersHaveEnded) {
  run();
  c_->machine.workers_ended(outcome_with(0));
  steps(2);
  c_->is_alive = false;
  steps(100);
  EXPECT_EQ(b_->count<StopWorkers>(), 0);
  a_->machine.workers_ended(outcome_with(0));
  b_->machine.workers_ended(outcome_with(0));
  steps(3);
  EXPECT_EQ(b_->machine.verdict()->kind, VerdictKind::kSucceeded);
  EXPECT_FALSE(a_->leader->is_done());
  steps(60);  // the last words of one that is gone are not waited for
  EXPECT_TRUE(a_->leader->is_done());
}

TEST_F(LeaderOfMachines, GivesTheRequeueCodeWhenAllHaveSaved) {
  run();
  (void)b_->machine.asked_to_stop(15, "SIGTERM");
  steps(2);
  auto saved = outcome_with(85);
  saved.has_saved = true;
  for (auto* launcher : {a_, b_, c_}) launcher->machine.workers_ended(saved);
  steps(4);
  EXPECT_EQ(c_->machine.verdict()->kind, VerdictKind::kStopped);
  EXPECT_EQ(c_->machine.verdict()->exit_code, 85);
}

TEST_F(LeaderOfMachines, DoesNotBelieveAClaimOfAnotherRank) {
  c_->is_alive = false;
  board_.values_[board_key::of(board_key::kClaim, 2)] = to_text(card_of(1, 3));
  steps(6);
  EXPECT_EQ(a_->leader->missing(), "machine 2");
  c_->is_alive = true;  // the place was made free
  steps(8);
  EXPECT_TRUE(c_->machine.is_running());
}

TEST(Records, AreReadBack) {
  JobPlan plan;
  plan.restart_count = 2;
  plan.num_workers = {2, 1};
  plan.hosts = {"a", "b"};
  plan.launchers = {"id-0", "id-1"};
  const auto read = plan_from(to_text(plan));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->world_size(), 3);
  EXPECT_EQ(read->first_rank(1), 2);
  EXPECT_EQ(read->describe(1), "machine 1 (b)");
}

TEST(Records, RefuseNumbersOutOfRange) {
  for (const char* text :
       {"",
        "[]",
        R"({"restart_count":0,"num_workers":[],"hosts":[],"launchers":[]})",
        R"({"restart_count":0,"num_workers":[0],"hosts":["a"],"launchers":["b"]})",
        R"({"restart_count":0,"num_workers":[1],"hosts":[],"launchers":["b"]})",
        R"({"restart_count":0,"num_workers":[1],"hosts":["a"],"launchers":[]})",
        R"({"restart_count":-1,"num_workers":[1],"hosts":["a"],"launchers":["b"]})"}) {
    EXPECT_FALSE(plan_from(text)) << text;
  }
  EXPECT_FALSE(
      verdict_from(R"({"kind":9,"code":0,"exit_code":0,"machine":0,"text":"","remedy":""})"));
  EXPECT_FALSE(
      verdict_from(R"({"kind":1,"code":5000,"exit_code":0,"machine":0,"text":"","remedy":""})"));
  EXPECT_FALSE(
      stop_from(R"({"kind":0,"machine":0,"rank":0,"exit_code":0,"may_restart":true,"text":""})"));
}

}  // namespace
}  // namespace accel::launcher::leader_test
