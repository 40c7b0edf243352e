// What is exchanged of the gradients that come, and when, as a table of decisions.

#include "libaccel/engine/gradients/exchange_state.h"

#include <optional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::exchange_state_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Missing = ExchangeState::Missing;
using Phase = ExchangeState::Phase;

// Of four parameters in two groups, from the last one down, and one of which nothing is exchanged.
ExchangeState state_of(Missing missing) {
  return ExchangeState({.missing = missing, .group_of = {1, 1, ExchangeState::kNoGroup, 0, 0}});
}

void arrive(ExchangeState& state, const std::vector<std::size_t>& parameters) {
  for (const std::size_t parameter : parameters) EXPECT_TRUE(state.arrive(parameter));
}

TEST(ExchangeState, AForwardDecidesBySyncForTheNextBackward) {
  ExchangeState state = state_of(Missing::kIsRefused);
  state.forward();
  EXPECT_EQ(state.phase(), Phase::kArmed);

  state.set_sync(false);
  state.forward();
  EXPECT_EQ(state.phase(), Phase::kLocal);

  state.set_sync(true);
  EXPECT_FALSE(state.exchanges()) << "the forward was without";
  state.end();
  EXPECT_EQ(state.phase(), Phase::kUndecided);
}

TEST(ExchangeState, WithoutAForwardTheSwitchDecidesWhenTheFirstGradientComes) {
  ExchangeState state = state_of(Missing::kIsZero);
  state.set_sync(false);
  EXPECT_FALSE(state.exchanges());
  state.set_sync(true);
  EXPECT_TRUE(state.exchanges());
}

TEST(ExchangeState, GroupsGoInOrderWhateverTheOrderOfGradients) {
  ExchangeState state = state_of(Missing::kIsRefused);
  state.forward();
  state.begin(/*is_late=*/false);

  arrive(state, {0, 1, 4});
  EXPECT_EQ(state.next_group(/*at_end=*/false), std::nullopt)
      << "the second one waits for the first";
  arrive(state, {3});
  EXPECT_EQ(state.next_group(false), 0);
  EXPECT_EQ(state.next_group(false), 1);
  EXPECT_EQ(state.next_group(false), std::nullopt);
}

TEST(ExchangeState, AtTheEndGroupsGoWithWhatHasCome) {
  ExchangeState state = state_of(Missing::kIsZero);
  state.begin(false);
  arrive(state, {3});

  EXPECT_EQ(state.next_group(/*at_end=*/true), 0);
  EXPECT_EQ(state.next_group(/*at_end=*/true), 1);
  EXPECT_EQ(state.next_group(/*at_end=*/true), std::nullopt);
  EXPECT_THAT(state.missing(), ElementsAre(0, 1, 2, 4));
}

TEST(ExchangeState, ASecondGradientIsToldApartUntilTheNextExchange) {
  ExchangeState state = state_of(Missing::kIsFound);
  state.forward();
  state.begin(false);
  arrive(state, {0});
  EXPECT_FALSE(state.arrive(0));

  state.end();
  state.resume(/*sync=*/true);  // a further backward of the same forward
  EXPECT_EQ(state.phase(), Phase::kFilling);
  EXPECT_FALSE(state.arrive(0));

  state.forward();
  state.begin(false);
  EXPECT_TRUE(state.arrive(0));
}

TEST(ExchangeState, OnlyWhereMissingOnesAreRefusedIsAnExchangeOpenWithoutThem) {
  for (const Missing missing : {Missing::kIsRefused, Missing::kIsFound, Missing::kIsZero}) {
    ExchangeState state = state_of(missing);
    state.begin(/*is_late=*/true);
    arrive(state, {0, 1, 3, 4});
    EXPECT_EQ(state.is_whole(), missing != Missing::kIsRefused);
    EXPECT_EQ(state.is_late(), missing == Missing::kIsRefused);
    arrive(state, {2});
    EXPECT_TRUE(state.is_whole());
    EXPECT_THAT(state.missing(), IsEmpty());
  }
}

TEST(ExchangeState, AForwardInABackwardLosesNothingThatFillsUpAtItsEnd) {
  ExchangeState zeros = state_of(Missing::kIsZero);
  zeros.begin(false);
  zeros.forward();
  EXPECT_EQ(zeros.phase(), Phase::kFilling);

  ExchangeState refused = state_of(Missing::kIsRefused);
  refused.begin(false);
  refused.forward();
  EXPECT_EQ(refused.phase(), Phase::kArmed);
}

TEST(ExchangeState, AnExceptionLeavesTheDecisionOpen) {
  ExchangeState state = state_of(Missing::kIsRefused);
  state.set_sync(false);
  state.forward();
  EXPECT_FALSE(state.abandon()) << "nothing was to be exchanged";
  EXPECT_EQ(state.phase(), Phase::kUndecided);

  state.set_sync(true);
  state.forward();
  EXPECT_TRUE(state.abandon());
  state.begin(false);
  EXPECT_TRUE(state.abandon());
  EXPECT_EQ(state.phase(), Phase::kUndecided);
}

TEST(ExchangeState, OwesOtherRanksAWordUntilTheExchangeAndNotForALossThatIsOnlyLogged) {
  ExchangeState state = state_of(Missing::kIsZero);
  EXPECT_TRUE(state.is_owed()) << "others may have run a backward without a forward";
  state.forward();
  state.begin(false);
  EXPECT_TRUE(state.is_owed());
  state.end();
  EXPECT_FALSE(state.is_owed());

  state.forward();
  EXPECT_FALSE(state.is_owed()) << "before the step";
  state.settled();
  state.forward();
  EXPECT_TRUE(state.is_owed());

  state.set_sync(false);
  state.forward();
  EXPECT_FALSE(state.is_owed());
}

}  // namespace
}  // namespace accel::exchange_state_test
