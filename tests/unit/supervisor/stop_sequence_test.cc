#include "runtime/supervisor/stop/stop_sequence.h"

#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/manual_clock.h"

namespace accel::supervisor::stop_sequence_test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Kind = StopAction::Kind;

const StopAction kNotify = {Kind::kNotify, StopTarget::kEveryone, 0};
const StopAction kKill = {Kind::kSignal, StopTarget::kEveryone, SIGKILL};
const StopAction kGiveUp = {Kind::kGiveUp, StopTarget::kEveryone, 0};

StopAction signal_to(StopTarget target, int signal) {
  return {Kind::kSignal, target, signal};
}

class StopSequenceTest : public ::testing::Test {
 protected:
  StopSequence make(StopStyle style, int signal = SIGTERM) const {
    return {{.grace = 30s, .kill_wait = 2s}, style, signal, clock_.now()};
  }

  test::ManualClock clock_;
};

TEST_F(StopSequenceTest, StacksAreWrittenBeforeTheKillAndNotWhenItIsHurried) {
  const StopAction stacks = {Kind::kDumpStacks, StopTarget::kEveryone, 0};
  const StopPolicy policy = {.grace = 30s, .kill_wait = 2s, .dump_stacks = true, .dump_wait = 3s};
  StopSequence sequence(policy, StopStyle::kSignal, SIGTERM, clock_.now());
  StopSequence hurried = sequence;
  StopSequence killed(policy, StopStyle::kKill, SIGTERM, clock_.now());
  EXPECT_THAT(killed.due(clock_.now()), ElementsAre(kKill));
  EXPECT_THAT(sequence.due(clock_.now()), ElementsAre(signal_to(StopTarget::kEveryone, SIGTERM)));
  (void)hurried.due(clock_.now());
  hurried.escalate(clock_.now());
  EXPECT_THAT(hurried.due(clock_.now()), ElementsAre(kKill));

  EXPECT_EQ(sequence.next(), clock_.now() + 27s);
  clock_.advance(27s);
  EXPECT_THAT(sequence.due(clock_.now()), ElementsAre(stacks));
  sequence.suspend(clock_.now());
  clock_.advance(60s);
  sequence.resume(clock_.now());
  EXPECT_THAT(sequence.due(clock_.now()), IsEmpty());
  clock_.advance(3s);
  EXPECT_THAT(sequence.due(clock_.now()), ElementsAre(kKill));
}

TEST_F(StopSequenceTest, AShortGraceLeavesHalfOfItForTheStacks) {
  StopSequence sequence({.grace = 1s, .dump_stacks = true, .dump_wait = 3s},
                        StopStyle::kSignal,
                        SIGTERM,
                        clock_.now());
  (void)sequence.due(clock_.now());
  EXPECT_EQ(sequence.next(), clock_.now() + 500ms);
}

TEST_F(StopSequenceTest, ASignalOfPreemptionIsTheNoticeOfThoseWithoutAChannel) {
  StopSequence sequence(
      {.grace = 30s, .preempt_signal = SIGUSR1}, StopStyle::kNotify, SIGTERM, clock_.now());

  EXPECT_THAT(sequence.due(clock_.now()),
              ElementsAre(kNotify, signal_to(StopTarget::kNotPreemptible, SIGUSR1)));
  clock_.advance(25s);
  EXPECT_THAT(sequence.due(clock_.now()), ElementsAre(signal_to(StopTarget::kEveryone, SIGTERM)));
  clock_.advance(5s);
  EXPECT_THAT(sequence.due(clock_.now()), ElementsAre(kKill));
}

TEST_F(StopSequenceTest, SignalsThenKillsThenGivesUp) {
  auto stop = make(StopStyle::kSignal, SIGINT);

  EXPECT_THAT(stop.due(clock_.now()), ElementsAre(signal_to(StopTarget::kEveryone, SIGINT)));
  clock_.advance(30s);
  EXPECT_THAT(stop.due(clock_.now()), ElementsAre(kKill));
  clock_.advance(2s);
  EXPECT_THAT(stop.due(clock_.now()), ElementsAre(kGiveUp));
  EXPECT_EQ(stop.next(), TimePoint::max());
}

TEST_F(StopSequenceTest, Fault69AGraceThatGoesOnCanBeShortenedAndNotMadeLonger) {
  auto stop = make(StopStyle::kNotify);
  (void)stop.due(clock_.now());
  clock_.advance(5s);

  stop.shorten(clock_.now(), 60s);
  EXPECT_EQ(stop.next(), clock_.now() + 20s);
  stop.shorten(clock_.now(), 10s);

  EXPECT_EQ(stop.next(), clock_.now() + 5s);
  clock_.advance(5s);
  EXPECT_THAT(stop.due(clock_.now()), ElementsAre(signal_to(StopTarget::kPreemptible, SIGTERM)));
  clock_.advance(5s);
  EXPECT_THAT(stop.due(clock_.now()), ElementsAre(kKill));
}

TEST_F(StopSequenceTest, GivesEachActionOnce) {
  auto stop = make(StopStyle::kSignal);

  (void)stop.due(clock_.now());

  EXPECT_THAT(stop.due(clock_.now()), IsEmpty());
}

TEST_F(StopSequenceTest, AsksThoseWhoHandlePreemptionAndSignalsTheOthers) {
  auto stop = make(StopStyle::kNotify);

  EXPECT_THAT(stop.due(clock_.now()),
              ElementsAre(kNotify, signal_to(StopTarget::kNotPreemptible, SIGTERM)));
}

TEST_F(StopSequenceTest, SignalsThoseWhoHandlePreemptionFiveSecondsBeforeTheKill) {
  auto stop = make(StopStyle::kNotify);
  (void)stop.due(clock_.now());

  clock_.advance(24'999ms);
  EXPECT_THAT(stop.due(clock_.now()), IsEmpty());
  clock_.advance(1ms);
  EXPECT_THAT(stop.due(clock_.now()), ElementsAre(signal_to(StopTarget::kPreemptible, SIGTERM)));
  clock_.advance(5s);
  EXPECT_THAT(stop.due(clock_.now()), ElementsAre(kKill));
}

TEST_F(StopSequenceTest, KillStyleKillsAtOnce) {
  auto stop = make(StopStyle::kKill);

  EXPECT_THAT(stop.due(clock_.now()), ElementsAre(kKill));
}

TEST_F(StopSequenceTest, EscalationKillsNow) {
  auto stop = make(StopStyle::kNotify);
  (void)stop.due(clock_.now());

  clock_.advance(1s);
  stop.escalate(clock_.now());

  EXPECT_THAT(stop.due(clock_.now()), ElementsAre(kKill));
  EXPECT_EQ(stop.next(), clock_.now() + 2s);
}

TEST_F(StopSequenceTest, TimeStandsStillWhileSuspended) {
  auto stop = make(StopStyle::kSignal);
  (void)stop.due(clock_.now());

  stop.suspend(clock_.now());
  EXPECT_EQ(stop.next(), TimePoint::max());
  clock_.advance(1h);
  stop.resume(clock_.now());

  EXPECT_THAT(stop.due(clock_.now()), IsEmpty());
  clock_.advance(30s);
  EXPECT_THAT(stop.due(clock_.now()), ElementsAre(kKill));
}

TEST_F(StopSequenceTest, LateCallerGetsEverythingThatIsDue) {
  auto stop = make(StopStyle::kSignal);

  clock_.advance(33s);

  EXPECT_THAT(stop.due(clock_.now()),
              ElementsAre(signal_to(StopTarget::kEveryone, SIGTERM), kKill, kGiveUp));
}

}  // namespace
}  // namespace accel::supervisor::stop_sequence_test
