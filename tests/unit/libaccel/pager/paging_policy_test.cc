#include "libaccel/engine/pager/paging_policy.h"

#include <algorithm>
#include <map>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libaccel/engine/pager/forward_order.h"

namespace accel::pager::paging_policy_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

StepTrace trace_of(std::size_t num_units, const std::vector<std::size_t>& step) {
  StepTrace trace(num_units);
  for (const std::size_t unit : step) trace.use(unit);
  trace.end_step();
  return trace;
}

TEST(StepTrace, KnowsNothingBeforeTheFirstStepHasEnded) {
  StepTrace trace(2);
  trace.use(0);

  EXPECT_FALSE(trace.is_known());
  EXPECT_EQ(trace.next_use(0), std::nullopt);
  EXPECT_THAT(trace.upcoming(2), IsEmpty());
  EXPECT_EQ(trace.last_use(1), 0u);
}

TEST(StepTrace, CountsRepeatedUsesInARowOnce) {
  StepTrace trace = trace_of(3, {0, 0, 1, 1, 2, 2, 1, 0});

  EXPECT_THAT(trace.upcoming(5), ElementsAre(0, 1, 2));
  EXPECT_EQ(trace.next_use(2), 2u);
  trace.use(0);
  trace.use(0);
  trace.use(1);
  EXPECT_EQ(trace.next_use(2), 0u);
  EXPECT_EQ(trace.next_use(0), 2u) << "its place in backward";
  EXPECT_EQ(trace.num_deviations(), 0u);
}

TEST(StepTrace, LooksOverTheEndOfTheStep) {
  StepTrace trace = trace_of(3, {0, 1, 2, 1});
  for (const std::size_t unit : {0, 1, 2, 1}) trace.use(unit);

  EXPECT_EQ(trace.next_use(0), 0u);
  EXPECT_EQ(trace.next_use(2), 2u);
  trace.end_step();
  EXPECT_EQ(trace.next_use(0), 0u);
  EXPECT_EQ(trace.num_deviations(), 0u);
}

TEST(StepTrace, FindsItsPlaceAgainAfterWhatWasSkippedOrPutIn) {
  StepTrace trace = trace_of(4, {0, 1, 2, 0});
  trace.use(0);
  trace.use(3);  // put in
  EXPECT_EQ(trace.next_use(1), 0u);
  trace.use(2);  // 1 was skipped
  EXPECT_EQ(trace.next_use(0), 0u);
  EXPECT_EQ(trace.num_deviations(), 2u);

  trace.end_step();
  EXPECT_THAT(trace.upcoming(4), ElementsAre(0, 3, 2)) << "the new way is expected now";
  EXPECT_EQ(trace.next_use(1), std::nullopt);
}

TEST(StepTrace, AStepWithoutUsesTeachesNothing) {
  StepTrace trace = trace_of(2, {0, 1});
  trace.end_step();

  EXPECT_THAT(trace.upcoming(2), ElementsAre(0, 1));
}

TEST(PagingPolicy, TheLeastRecentlyUsedLeavesBeforeAStepIsKnown) {
  StepTrace trace(4);
  for (const std::size_t unit : {2, 0, 1, 2}) trace.use(unit);

  EXPECT_EQ(choose_victim(trace, std::vector<std::size_t>{0, 1, 2}), 0u);
  EXPECT_EQ(choose_victim(trace, std::vector<std::size_t>{1, 2}), 1u);
  EXPECT_EQ(choose_victim(trace, std::vector<std::size_t>{2, 3}), 3u) << "never used at all";
  EXPECT_EQ(choose_victim(trace, {}), std::nullopt);
}

TEST(PagingPolicy, TheOneNeededLastLeavesWhenTheStepIsKnown) {
  StepTrace trace = trace_of(4, {0, 1, 2, 2, 1, 0});
  for (const std::size_t unit : {0, 1, 2}) trace.use(unit);

  EXPECT_EQ(choose_victim(trace, std::vector<std::size_t>{0, 1, 2}), 2u)
      << "2 comes with the next step, 0 and 1 in backward";
  EXPECT_EQ(choose_victim(trace, std::vector<std::size_t>{0, 1, 3}), 3u) << "never used";
}

TEST(PagingPolicy, FetchesAheadWhatIsNotThereWhenThereIsRoom) {
  const StepTrace trace = trace_of(3, {0, 1, 2});
  const std::vector<std::size_t> bytes = {10, 10, 10};
  const RoomView room{bytes, {}, 10, 30};

  const auto first = choose_prefetch(trace, room, {false, true, true}, 2);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->unit, 1u);
  EXPECT_THAT(first->victims, IsEmpty());
  EXPECT_FALSE(choose_prefetch(trace, room, {false, false, true}, 2)) << "beyond the depth";
  EXPECT_FALSE(choose_prefetch(StepTrace(3), room, {true, true, true}, 2)) << "no step is known";
}

TEST(PagingPolicy, FetchesAheadOnlyOverWhatIsNeededLaterAndNotInUse) {
  StepTrace trace = trace_of(4, {0, 1, 2, 3});
  trace.use(0);
  const std::vector<std::size_t> bytes = {10, 10, 10, 10};
  const std::vector<std::size_t> evictable = {0, 2, 3};
  const RoomView room{bytes, evictable, 30, 30};

  const auto next = choose_prefetch(trace, room, {false, true, false, false}, 1);
  ASSERT_TRUE(next.has_value());
  EXPECT_THAT(next->victims, ElementsAre(3)) << "0 is used right now, though it comes last";

  const std::vector<std::size_t> sooner = {0, 1};
  const RoomView full{bytes, sooner, 20, 20};
  EXPECT_FALSE(choose_prefetch(trace, full, {false, false, true, true}, 3));
}

// Plays a schedule against a memory of `room` units; returns the fills of its last step.
int fills_of(const std::vector<std::size_t>& step, std::size_t num_units, std::size_t room) {
  StepTrace trace(num_units);
  std::vector<std::size_t> resident;
  int fills = 0;
  for (int round = 0; round < 4; ++round) {
    fills = 0;
    for (const std::size_t unit : step) {
      trace.use(unit);
      if (std::find(resident.begin(), resident.end(), unit) != resident.end()) continue;
      ++fills;
      if (resident.size() == room) std::erase(resident, *choose_victim(trace, resident));
      resident.push_back(unit);
    }
    trace.end_step();
  }
  return fills;
}

// The fewest fills of a repeated schedule by trying all choices: room * units is small here.
int fewest_fills(const std::vector<std::size_t>& step, std::size_t room) {
  std::map<std::vector<std::size_t>, int> costs = {{{}, 0}};
  std::vector<int> best;
  for (int round = 0; round < 4; ++round) {
    for (const std::size_t unit : step) {
      std::map<std::vector<std::size_t>, int> next;
      const auto offer = [&](std::vector<std::size_t> resident, int cost) {
        std::sort(resident.begin(), resident.end());
        const auto [place, is_new] = next.emplace(std::move(resident), cost);
        if (!is_new) place->second = std::min(place->second, cost);
      };
      for (const auto& [resident, cost] : costs) {
        if (std::find(resident.begin(), resident.end(), unit) != resident.end()) {
          offer(resident, cost);
          continue;
        }
        auto more = resident;
        more.push_back(unit);
        if (more.size() <= room) {
          offer(more, cost + 1);
          continue;
        }
        for (const std::size_t victim : resident) {
          auto without = more;
          std::erase(without, victim);
          offer(without, cost + 1);
        }
      }
      costs = std::move(next);
    }
    int least = costs.begin()->second;
    for (const auto& [resident, cost] : costs) least = std::min(least, cost);
    best.push_back(least);
  }
  return best.back() - best.front();  // of the last three steps
}

TEST(PagingPolicy, NeedsHardlyMoreFillsThanTheBestScheduleOfAll) {
  std::mt19937 random(13);
  for (int round = 0; round < 40; ++round) {
    const std::size_t num_units = 3 + random() % 4;
    const std::size_t room = 2 + random() % (num_units - 1);
    std::vector<std::size_t> step;
    for (std::size_t unit = 0; unit < num_units; ++unit) step.push_back(unit);
    for (std::size_t unit = num_units; unit-- > 0;) step.push_back(unit);
    if (round % 2 == 1) std::shuffle(step.begin(), step.end(), random);
    // Over three steps the rule that looks one step ahead may lose one fill a step at most.
    EXPECT_LE(3 * fills_of(step, num_units, room), fewest_fills(step, room) + 3) << round;
  }
}

// What each use of `forward`, repeated, is followed by in the expectation.
void expect_foreseen(ForwardOrder& order, const std::vector<std::size_t>& forward) {
  for (std::size_t i = 0; i < forward.size(); ++i) {
    order.use(forward[i]);
    EXPECT_THAT(order.trace().upcoming(1), ElementsAre(forward[(i + 1) % forward.size()])) << i;
  }
}

TEST(ForwardOrder, IsAtFirstThatOfTheWeights) {
  ForwardOrder order(3);

  expect_foreseen(order, {0, 1, 2});
  expect_foreseen(order, {0, 1, 2});
}

TEST(ForwardOrder, IsLearnedFromOneForward) {
  ForwardOrder order(4);
  // 3 is used in each layer, and begins the forward.
  const std::vector<std::size_t> forward = {3, 2, 3, 0, 3, 1};
  for (const std::size_t weight : forward) order.use(weight);

  expect_foreseen(order, forward);
  expect_foreseen(order, forward);
}

TEST(ForwardOrder, WeightsThatAreLeftOutDoNotStopIt) {
  ForwardOrder order(4);
  for (int forward = 0; forward < 5; ++forward) {
    order.use_rows(0);
    order.use(1);
    order.use(2);  // 3 is never used
  }

  expect_foreseen(order, {1, 2});
}

}  // namespace
}  // namespace accel::pager::paging_policy_test
