// The election on virtual time: what each answer, silence and change of the key leads to.

#include "agent/coordinator/election/election.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::agent::election_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

// One agent; the test is its etcd.
class ElectionTest : public ::testing::Test {
 protected:
  ElectionTest() { state_.own_address = "a:1"; }

  void tell(decltype(ElectionEvent::what) what) {
    ElectionStep next = step(std::move(state_), {now_, std::move(what)});
    state_ = std::move(next.state);
    actions_ = std::move(next.actions);
  }
  void advance(Milliseconds by) {
    now_ += by;
    tell(ElectionTick{});
  }
  template <typename Action>
  const Action* find() const {
    for (const ElectionAction& action : actions_) {
      if (const auto* found = std::get_if<Action>(&action)) return found;
    }
    return nullptr;
  }
  // Up to `phase`, with lease 7 and epoch 20, on a cluster where nobody leads.
  void go(ElectionPhase phase) {
    tell(ElectionTick{});
    if (state_.phase == phase) return;
    tell(Looked{state_.call, {}, 10});
    if (state_.phase == phase) return;
    tell(Granted{state_.call, 7, 6'000ms});
    if (state_.phase == phase) return;
    tell(Won{state_.call, 20});
    if (state_.phase == phase) return;
    tell(Opened{state_.call});
  }
  static LeaderKey key_of(const char* address, std::uint64_t epoch, LeaseId lease = 99) {
    return {{address, epoch}, lease};
  }

  ElectionState state_;
  std::vector<ElectionAction> actions_;
  TimePoint now_{1'000'000ms};
};

TEST_F(ElectionTest, WhereNobodyLeadsItAsksForALeaseThenForTheKeyThenReadsTheRecords) {
  tell(ElectionTick{});
  ASSERT_NE(find<Look>(), nullptr);
  tell(Looked{state_.call, {}, 10});
  ASSERT_NE(find<Grant>(), nullptr);
  EXPECT_EQ(find<Grant>()->ttl, 6'000ms);
  tell(Granted{state_.call, 7, 6'000ms});
  ASSERT_NE(find<Campaign>(), nullptr);
  EXPECT_EQ(find<Campaign>()->lease, 7);
  tell(Won{state_.call, 20});
  ASSERT_NE(find<Open>(), nullptr);
  EXPECT_EQ(find<Open>()->epoch, 20U);
  EXPECT_EQ(find<Lead>(), nullptr);
  tell(Opened{state_.call});
  EXPECT_NE(find<Lead>(), nullptr);
}

TEST_F(ElectionTest, WhereAnotherLeadsItFollowsAndWatches) {
  tell(ElectionTick{});
  tell(Looked{state_.call, key_of("b:1", 4), 10});

  ASSERT_NE(find<Follow>(), nullptr);
  EXPECT_EQ(find<Follow>()->leader, (Leader{"b:1", 4}));
  ASSERT_NE(find<WatchKey>(), nullptr);
  EXPECT_EQ(find<WatchKey>()->from_revision, 11U);
}

TEST_F(ElectionTest, TheKeyGoesAndItCampaignsAtOnce) {
  tell(ElectionTick{});
  tell(Looked{state_.call, key_of("b:1", 4), 10});
  tell(KeySeen{state_.watch, {}});

  EXPECT_NE(find<Grant>(), nullptr);
  EXPECT_EQ(find<Follow>()->leader, Leader{});
}

TEST_F(ElectionTest, AnotherTakesTheKeyAndItIsFollowed) {
  tell(ElectionTick{});
  tell(Looked{state_.call, key_of("b:1", 4), 10});
  tell(KeySeen{state_.watch, key_of("c:1", 12)});

  EXPECT_EQ(find<Follow>()->leader, (Leader{"c:1", 12}));
}

TEST_F(ElectionTest, AWatchThatBreaksIsMadeAnewFromWhatIsReadThen) {
  tell(ElectionTick{});
  tell(Looked{state_.call, key_of("b:1", 4), 10});
  tell(WatchBroke{state_.watch});
  advance(500ms);
  ASSERT_NE(find<Look>(), nullptr);
  tell(Looked{state_.call, key_of("b:1", 4), 30});

  ASSERT_NE(find<WatchKey>(), nullptr);
  EXPECT_EQ(find<WatchKey>()->from_revision, 31U);
}

TEST_F(ElectionTest, AWatchThatIsDeadWithoutSayingSoIsFoundOutByReading) {
  tell(ElectionTick{});
  tell(Looked{state_.call, key_of("b:1", 4), 10});
  advance(5'000ms);
  ASSERT_NE(find<Look>(), nullptr);
  tell(Looked{state_.call, {}, 40});

  EXPECT_NE(find<Grant>(), nullptr);
}

TEST_F(ElectionTest, AKeyOfAnEarlierLifeOfThisAgentIsNobodysAndWaitedFor) {
  tell(ElectionTick{});
  tell(Looked{state_.call, key_of("a:1", 4), 10});

  EXPECT_EQ(find<Follow>()->leader, Leader{});
  EXPECT_EQ(find<Grant>(), nullptr);
  EXPECT_NE(find<WatchKey>(), nullptr);
}

TEST_F(ElectionTest, TheQuickerOneWinsAndTheLeaseOfTheOtherIsGivenBack) {
  go(ElectionPhase::kCampaigning);
  tell(CallFailed{state_.call, "another agent was quicker"});
  ASSERT_NE(find<Revoke>(), nullptr);
  EXPECT_EQ(find<Revoke>()->lease, 7);
  tell(Revoked{state_.call});
  ASSERT_NE(find<Look>(), nullptr);
  tell(Looked{state_.call, key_of("b:1", 15), 16});

  EXPECT_EQ(find<Follow>()->leader, (Leader{"b:1", 15}));
}

TEST_F(ElectionTest,
       ALeaderStepsDownFiveSixthsOfTheLeaseAfterItSentTheLastKeepAliveThatWasAnswered) {
  go(ElectionPhase::kLeading);
  tell(Looked{state_.call, key_of("a:1", 20, 7), 21});
  advance(1'000ms);
  ASSERT_NE(find<KeepAlive>(), nullptr);
  const TimePoint sent = now_;
  now_ += 900ms;
  tell(KeptAlive{find<KeepAlive>()->call, 6'000ms});
  ASSERT_NE(find<Extend>(), nullptr);
  EXPECT_EQ(find<Extend>()->until, sent + 5'000ms);

  advance(Milliseconds(4'999 - 900));
  EXPECT_EQ(state_.phase, ElectionPhase::kLeading);
  advance(1ms);

  EXPECT_EQ(state_.phase, ElectionPhase::kResigning);
  ASSERT_NE(find<Follow>(), nullptr);
  EXPECT_EQ(find<Follow>()->leader, Leader{});
  EXPECT_NE(find<Revoke>(), nullptr);
}

TEST_F(ElectionTest, AnAnswerAfterTheEndOfTheTermComesTooLate) {
  go(ElectionPhase::kLeading);
  advance(1'000ms);
  const CallId call = find<KeepAlive>()->call;
  now_ += 10'000ms;  // the process was stopped
  tell(KeptAlive{call, 6'000ms});

  EXPECT_EQ(state_.phase, ElectionPhase::kResigning);
}

TEST_F(ElectionTest, RecordsThatAreReadAfterTheEndOfTheTermDoNotMakeALeader) {
  go(ElectionPhase::kOpening);
  now_ += 5'100ms;
  tell(Opened{state_.call});

  EXPECT_EQ(find<Lead>(), nullptr);
  EXPECT_EQ(state_.phase, ElectionPhase::kResigning);
}

TEST_F(ElectionTest, KeepAliveThatFailsIsTriedAgainWithinTheTerm) {
  go(ElectionPhase::kLeading);
  advance(1'000ms);
  tell(KeepAliveFailed{find<KeepAlive>()->call, "no answer"});
  EXPECT_EQ(find<KeepAlive>(), nullptr);
  advance(500ms);

  EXPECT_NE(find<KeepAlive>(), nullptr);
  EXPECT_EQ(state_.phase, ElectionPhase::kLeading);
}

TEST_F(ElectionTest, ATermThatEndsWithoutAnAnswerSaysWhatTheLastKeepAliveMet) {
  go(ElectionPhase::kLeading);
  advance(1'000ms);
  tell(KeepAliveFailed{find<KeepAlive>()->call, "etcd does not answer at m1:2379"});
  now_ += 10'000ms;
  tell(ElectionTick{});

  ASSERT_NE(find<Tell>(), nullptr);
  EXPECT_THAT(find<Tell>()->line, HasSubstr("m1:2379"));
}

TEST_F(ElectionTest, ALeaseThatEtcdEndedEndsTheLeadership) {
  go(ElectionPhase::kLeading);
  advance(1'000ms);
  tell(KeptAlive{find<KeepAlive>()->call, 0ms});

  EXPECT_EQ(state_.phase, ElectionPhase::kResigning);
}

TEST_F(ElectionTest, ALeaderWhoseKeyWasRemovedStepsDown) {
  go(ElectionPhase::kLeading);
  tell(Looked{state_.call, key_of("a:1", 20, 7), 21});
  ASSERT_NE(state_.watch, 0U);
  tell(KeySeen{state_.watch, {}});

  EXPECT_EQ(state_.phase, ElectionPhase::kResigning);
  EXPECT_THAT(find<Tell>()->line, HasSubstr("removed"));
}

TEST_F(ElectionTest, ALeaderWhoseKeyIsAnothersStepsDown) {
  go(ElectionPhase::kLeading);
  tell(Looked{state_.call, key_of("b:1", 25), 30});

  EXPECT_EQ(state_.phase, ElectionPhase::kResigning);
}

TEST_F(ElectionTest, ARefusedWriteEndsTheLeadership) {
  go(ElectionPhase::kLeading);
  tell(Deposed{"b:1 leads"});

  EXPECT_EQ(state_.phase, ElectionPhase::kResigning);
  EXPECT_EQ(find<Follow>()->leader, Leader{});
}

TEST_F(ElectionTest, AKeyThatCameLateOrCouldNotBeRevokedIsRevokedOnceItIsSeen) {
  go(ElectionPhase::kCampaigning);
  tell(CallFailed{state_.call, "no answer"});
  tell(CallFailed{state_.call, "no answer"});  // to Revoke
  advance(500ms);
  tell(Looked{state_.call, key_of("a:1", 20, 7), 22});

  ASSERT_NE(find<Revoke>(), nullptr);
  EXPECT_EQ(find<Revoke>()->lease, 7);
}

TEST_F(ElectionTest, EtcdThatDoesNotAnswerIsAskedAgainAndToldOnce) {
  tell(ElectionTick{});
  tell(CallFailed{state_.call, "no answer"});
  EXPECT_NE(find<Tell>(), nullptr);
  advance(500ms);
  ASSERT_NE(find<Look>(), nullptr);
  tell(CallFailed{state_.call, "no answer"});

  EXPECT_EQ(find<Tell>(), nullptr);
}

TEST_F(ElectionTest, AnswersToOlderCallsChangeNothing) {
  go(ElectionPhase::kLeading);
  const ElectionPhase before = state_.phase;
  for (CallId call = 1; call < state_.call; ++call) {
    if (call == state_.watch || call == state_.keep_alive) continue;
    tell(Looked{call, key_of("b:1", 4), 10});
    tell(CallFailed{call, "late"});
    tell(KeySeen{call, {}});
    tell(KeptAlive{call, 0ms});
  }

  EXPECT_EQ(state_.phase, before);
}

TEST_F(ElectionTest, ALeaderThatEndsGivesItsLeaseBackFirst) {
  go(ElectionPhase::kLeading);
  tell(Quit{});
  EXPECT_NE(find<Follow>(), nullptr);
  ASSERT_NE(find<Revoke>(), nullptr);
  EXPECT_EQ(find<Ended>(), nullptr);
  tell(CallFailed{state_.call, "no answer"});

  EXPECT_NE(find<Ended>(), nullptr);
  EXPECT_EQ(next_wake(state_), TimePoint::max());
}

TEST_F(ElectionTest, AFollowerThatEndsEndsAtOnce) {
  tell(ElectionTick{});
  tell(Looked{state_.call, key_of("b:1", 4), 10});
  tell(Quit{});

  EXPECT_NE(find<Ended>(), nullptr);
}

}  // namespace
}  // namespace accel::agent::election_test
