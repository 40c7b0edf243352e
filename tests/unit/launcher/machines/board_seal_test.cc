// Whole jobs of launchers that know a token, on a board that strangers write to as well.

#include "launcher/start/machines/board/board_seal.h"

#include "launcher/start/machines/board/agreement.h"
#include "tests/unit/launcher/machines/machines_fixture.h"

namespace accel::launcher::board_seal_test {
namespace {

using ::testing::HasSubstr;

// Not one that could be used: what matters here is what goes into it.
BoardSeal seal_with(const std::string& token) {
  return BoardSeal([token](std::string_view session, std::string_view key, std::string_view text) {
    std::string all = token;
    for (const auto part : {session, key, text}) all.append(1, '\0').append(part);
    std::string proof = std::to_string(std::hash<std::string>()(all));
    proof.resize(BoardSeal::kProofBytes, '.');
    return proof;
  });
}

class SealedMachines : public MachinesFixture {
 protected:
  Launcher& add_with(const std::string& token, int rank, int num_machines = 2) {
    const MachineCard card = card_of(rank, num_machines);
    Launcher& launcher = add(card);
    if (!token.empty()) launcher.seal = seal_with(token);
    launcher.seal.begin(card, rank == 0);
    return launcher;
  }

  // Until all that were added run their workers, or are prepared as far as they get.
  void meet() { steps(14); }

  // Whoever reaches the store may write this.
  void forge(std::string_view key, const std::string& text) {
    board_.values_[std::string(key)] = text;
  }
};

TEST_F(SealedMachines, WithTheSameTokenDoAJobTogether) {
  auto& a = add_with("sesame", 0);
  auto& b = add_with("sesame", 1);
  meet();
  a.machine.workers_ended(outcome_with(0));
  b.machine.workers_ended(outcome_with(0));
  steps(6);
  ASSERT_TRUE(b.machine.verdict());
  EXPECT_EQ(b.machine.verdict()->kind, VerdictKind::kSucceeded);
  EXPECT_TRUE(a.leader->is_done());
  for (const auto& [key, value] : board_.values_) {
    EXPECT_TRUE(value.empty() || value.starts_with("accel-seal-2:")) << key;
    EXPECT_EQ(value.find("sesame"), std::string::npos) << key;
  }
}

TEST_F(SealedMachines, AreNeitherStartedNorStoppedNorEndedByWordsOfStrangers) {
  auto& a = add_with("sesame", 0);
  forge(board_key::of(board_key::kClaim, 1), to_text(card_of(1, 2)));
  forge(board_key::of(board_key::kReady, 1), "1");
  forge(board_key::kFault, to_text(failed_verdict(Error(ErrorCode::kUsage, "no"), 1)));
  steps(6);
  EXPECT_EQ(a.leader->missing(), "machine 1");

  auto& b = add_with("sesame", 1);
  b.prepares = false;
  meet();
  forge(board_key::kGo, "1");
  step();
  EXPECT_EQ(a.count<StartWorkers>() + b.count<StartWorkers>(), 0);

  b.machine.workers_ready();
  steps(4);
  forge(board_key::kStop, to_text(StopNote{.text = "stop"}));
  forge(board_key::kVerdict, to_text(failed_verdict(Error(ErrorCode::kUsage, "no"), 1)));
  steps(4);
  EXPECT_TRUE(a.machine.is_running() && b.machine.is_running());
  EXPECT_EQ(a.count<StopWorkers>() + b.count<StopWorkers>(), 0);
}

TEST_F(SealedMachines, StopTheJobThoughAStrangersWordStandsInTheWay) {
  auto& a = add_with("sesame", 0);
  auto& b = add_with("sesame", 1);
  meet();
  forge(board_key::kStop, "nothing");
  b.machine.worker_failed(failed_worker(1, 7));
  steps(4);
  EXPECT_EQ(a.count<StopWorkers>(), 1);
}

TEST_F(SealedMachines, DoNotBelieveAWordThatWasMovedToAnotherKey) {
  auto& a = add_with("sesame", 0);
  auto& b = add_with("sesame", 1);
  b.prepares = false;
  meet();
  ASSERT_EQ(b.count<PrepareWorkers>(), 1);
  forge(board_key::of(board_key::kReady, 1), board_.values_[board_key::of(board_key::kReady, 0)]);
  steps(4);
  EXPECT_EQ(a.count<StartWorkers>(), 0);
}

TEST_F(SealedMachines, DoNotBelieveWordsOfAnEarlierGeneration) {
  auto& a = add_with("sesame", 0);
  auto& b = add_with("sesame", 1);
  meet();
  b.machine.worker_failed(failed_worker(1, 7));
  steps(2);
  const std::string stop = board_.values_[std::string(board_key::kStop)];
  auto next = card_of(0, 2);
  next.generation = 1;
  BoardSeal seal = seal_with("sesame");
  seal.begin(next, true);
  supervisor::StoreExchange wanted;
  wanted.reads = {std::string(board_key::kStop)};
  EXPECT_FALSE(seal.open(wanted, {.values = {stop}}).has(board_key::kStop));
  EXPECT_TRUE(a.seal.open(wanted, {.values = {stop}}).has(board_key::kStop));
}

TEST_F(SealedMachines, JoinThoughStrangersWriteWhereTheyAskMachine0) {
  constexpr int kMachines = 5;
  for (int rank = 0; rank < kMachines; ++rank) add_with("sesame", rank, kMachines);
  for (int i = 0; i < 40; ++i) {
    for (int slot = 0; slot < kMachines && i < 8; ++slot) {
      forge(board_key::of(board_key::kHello, slot), "stranger");
      forge(board_key::of(board_key::kWelcome, slot), "stranger");
    }
    step();
  }
  for (const auto& launcher : launchers_) EXPECT_TRUE(launcher->machine.is_running());
}

TEST_F(SealedMachines, FindAMachine0ThatWasStartedAnewBeforeTheyJoined) {
  auto& first = add_with("sesame", 0);
  auto& b = add_with("sesame", 1);
  while (b.seal.is_asking() || !board_.values_.contains(std::string(board_key::kHost))) step();
  ASSERT_FALSE(b.machine.plan());
  first.is_alive = false;
  board_.values_.clear();
  MachineCard card = card_of(0, 2);
  card.id = "id of another start";
  auto& second = add(card);
  second.seal = seal_with("sesame");
  second.seal.begin(card, true);
  meet();
  EXPECT_TRUE(b.machine.is_running() && second.machine.is_running());
}

TEST_F(SealedMachines, ThatComeTooLateHearOfItAndLeaveTheJobAlone) {
  MachineCard card = card_of(0, 2);
  card.generation = 1;
  auto& a = add(card);
  a.seal = seal_with("sesame");
  a.seal.begin(card, true);
  auto& late = add_with("sesame", 1);
  meet();
  ASSERT_TRUE(late.machine.error());
  EXPECT_THAT(late.machine.error()->message(), HasSubstr("runs already, in generation 1"));
  EXPECT_FALSE(a.leader->verdict());
}

// Every word of a whole job with the same token, as somebody has recorded it.
class RecordedJob : public SealedMachines {
 protected:
  RecordedJob() {
    auto& a = add_with("sesame", 0);
    auto& b = add_with("sesame", 1);
    meet();
    b.machine.worker_failed(failed_worker(1, 7));
    steps(2);
    a.machine.workers_ended(outcome_with(1));
    b.machine.workers_ended(outcome_with(7));
    steps(6);
    recorded_ = board_.values_;
    recorded_[std::string(board_key::kFault)] = recorded_.at(std::string(board_key::kVerdict));
    launchers_.clear();
    board_.values_.clear();
  }

  Launcher& add_today(int rank) {
    MachineCard card = card_of(rank, 2);
    card.id = "id of today, " + std::to_string(rank);
    Launcher& launcher = add(card);
    launcher.seal = seal_with("sesame");
    launcher.seal.begin(card, rank == 0);
    return launcher;
  }

  // What is told of on the board now is that of the recorded job.
  void replay() {
    for (const auto& [key, value] : recorded_) board_.values_[key] = value;
  }

  std::map<std::string, std::string> recorded_;
};

TEST_F(RecordedJob, HasTheWordsThatSendAMachineAway) {
  for (const auto key : {board_key::kHost, board_key::kPlan, board_key::kStop, board_key::kVerdict})
    EXPECT_TRUE(recorded_.contains(std::string(key))) << key;
}

TEST_F(RecordedJob, NeitherStartsAMachineNorSendsItAway) {
  auto& victim = add_today(1);
  for (int i = 0; i < 20; ++i) {
    replay();
    step();
  }
  EXPECT_TRUE(victim.actions.empty());
  EXPECT_FALSE(victim.machine.error());
  EXPECT_FALSE(victim.machine.verdict());
  EXPECT_FALSE(victim.machine.has_joined());
  EXPECT_FALSE(victim.seal.distrust());

  board_.values_.clear();
  auto& main = add_today(0);
  meet();
  EXPECT_TRUE(victim.machine.is_running() && main.machine.is_running());
}

TEST_F(RecordedJob, SendsNobodyAwayAtAnyTimeBeforeThePlan) {
  for (int before = 0; before < 12; ++before) {
    launchers_.clear();
    board_.values_.clear();
    auto& main = add_today(0);
    auto& victim = add_today(1);
    steps(before);
    for (int i = 0; i < 3; ++i) {
      for (const auto& launcher : {&main, &victim}) {
        replay();
        step_of(*launcher);
      }
    }
    steps(20);
    EXPECT_FALSE(main.leader->verdict()) << before;
    EXPECT_TRUE(victim.machine.is_running() && main.machine.is_running()) << before;
  }
}

// What machine 0 of an earlier job with the same token wrote, sealed as it was then.
class EarlierJob : public SealedMachines {
 protected:
  EarlierJob() { card_.id = "yesterday"; }
  void replay(std::string_view key, const std::string& text) { replay(key, text, card_); }
  void replay(std::string_view key, const std::string& text, const MachineCard& main) {
    BoardSeal seal = seal_with("sesame");
    seal.begin(main, true);
    supervisor::StoreExchange said;
    said.sets = {{std::string(board_key::kHost), to_text(main)}, {std::string(key), text}};
    board_.exchange(seal.seal(said));
  }

  MachineCard card_ = card_of(0, 2);
};

TEST_F(EarlierJob, NeitherStopsNorEndsMachinesThatHaveTakenTheirPlan) {
  auto& a = add_with("sesame", 0);
  auto& b = add_with("sesame", 1);
  meet();
  ASSERT_TRUE(b.machine.is_running());
  const std::string verdict = to_text(failed_verdict(Error(ErrorCode::kUsage, "yesterday"), 1));
  for (int i = 0; i < 4; ++i) {
    for (const auto& launcher : {&b, &a}) {
      replay(board_key::kStop, to_text(StopNote{.text = "yesterday"}));
      replay(board_key::kVerdict, verdict);
      step_of(*launcher);
    }
  }
  EXPECT_TRUE(a.machine.is_running() && b.machine.is_running());
  EXPECT_EQ(a.count<StopWorkers>() + b.count<StopWorkers>(), 0);

  b.machine.worker_failed(failed_worker(1, 7));
  steps(4);
  EXPECT_EQ(a.count<StopWorkers>(), 1) << "their own words count on";
}

TEST_F(EarlierJob, HandsNoPlanOfAnEarlierGenerationToALaunchersNextOne) {
  card_ = card_of(0, 2);
  add_with("sesame", 0);
  auto& earlier = add_with("sesame", 1);
  meet();
  ASSERT_TRUE(earlier.machine.is_running());
  auto next = card_of(1, 2);
  next.generation = 1;
  BoardSeal seal = earlier.seal;
  launchers_.clear();
  board_.values_.clear();
  auto& b = add(next);
  b.seal = seal;
  b.seal.begin(next, false);
  MachineCard main = card_of(0, 2);
  main.generation = 1;
  replay(board_key::kJoins, "", main);
  steps(2);
  ASSERT_TRUE(b.machine.has_joined());

  const JobPlan plan = {
      .num_workers = {1, 1}, .hosts = {"host-0", "host-1"}, .launchers = {"id-0", "id-1"}};
  replay(board_key::kPlan, to_text(plan), card_of(0, 2));
  steps(2);
  EXPECT_EQ(b.count<PrepareWorkers>(), 0);
  replay(board_key::kPlan, to_text(plan), main);
  steps(2);
  EXPECT_EQ(b.count<PrepareWorkers>(), 1);
}

struct Mismatch {
  const char* main;
  const char* other;
  const char* text;
};

class TokenMismatch : public SealedMachines, public ::testing::WithParamInterface<Mismatch> {};

TEST_P(TokenMismatch, IsNamedOnTheOtherMachineAndLeavesMachine0Alone) {
  auto& a = add_with(GetParam().main, 0);
  auto& b = add_with(GetParam().other, 1);
  step();
  EXPECT_FALSE(b.seal.distrust());
  steps(6);
  const auto why = b.seal.distrust();
  ASSERT_TRUE(why);
  EXPECT_EQ(why->code(), ErrorCode::kAuthentication);
  EXPECT_THAT(why->message(), HasSubstr(GetParam().text));
  EXPECT_THAT(why->remedy(), HasSubstr("ACCEL_JOB_TOKEN"));
  EXPECT_FALSE(b.machine.has_joined());
  EXPECT_FALSE(a.machine.verdict());
  EXPECT_FALSE(a.seal.distrust());
}

TEST_F(SealedMachines, AnotherVersionOfTheSealIsToldAsSuch) {
  auto& b = add_with("sesame", 1);
  board_.values_[std::string(board_key::kHost)] = "accel-seal-1:" + std::string(40, 'x');
  steps(6);

  const auto why = b.seal.distrust();
  ASSERT_TRUE(why);
  EXPECT_EQ(why->code(), ErrorCode::kProtocol);
  EXPECT_THAT(why->message(), HasSubstr("another version of accel"));
}

INSTANTIATE_TEST_SUITE_P(
    Tokens,
    TokenMismatch,
    ::testing::Values(
        Mismatch{"sesame", "", "machine 0 has a token of the job, and this machine has none"},
        Mismatch{"", "sesame", "this machine has a token of the job, and machine 0 has none"},
        Mismatch{"sesame", "pepper", "machine 0 has another token"}));

TEST_F(SealedMachines, JoinThoughAStrangerWroteOverTheCardOfMachine0) {
  add_with("sesame", 0);
  auto& b = add_with("sesame", 1);
  for (int i = 0; i < 16; ++i) {
    step();
    if (i < 2) forge(board_key::kHost, "nobody");
  }
  EXPECT_FALSE(b.seal.distrust());
  EXPECT_TRUE(b.machine.is_running());
}

}  // namespace
}  // namespace accel::launcher::board_seal_test
