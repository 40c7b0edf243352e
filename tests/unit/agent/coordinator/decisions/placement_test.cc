#include "agent/coordinator/decisions/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::agent::placement_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> order(const std::vector<Candidate>& candidates, PlacementLimits limits) {
  std::vector<std::string> ids;
  for (const Seat& seat : place(candidates, limits)) ids.push_back(seat.node_id);
  return ids;
}

TEST(Placement, NewcomersSitInTheOrderTheyCame) {
  EXPECT_THAT(order({{"b"}, {"a"}, {"c"}}, {2, 4}), ElementsAre("b", "a", "c"));
}

TEST(Placement, TooFewGiveNothing) {
  EXPECT_THAT(order({{"a"}}, {2, 4}), IsEmpty());
  EXPECT_THAT(order({}, {1, 4}), IsEmpty());
}

TEST(Placement, NoMoreThanMaxNodes) {
  EXPECT_THAT(order({{"a"}, {"b"}, {"c"}}, {1, 2}), ElementsAre("a", "b"));
}

TEST(Placement, RanksFollowTheSlots) {
  const auto seats = place({{"a", 2}, {"b", 4}, {"c", 1}}, {1, 3});

  EXPECT_EQ(seats[1].first_rank, 2);
  EXPECT_EQ(seats[2].first_rank, 6);
  EXPECT_EQ(seats[2].num_ranks, 1);
}

TEST(Placement, SurvivorsKeepTheirIndexAndANewcomerTakesTheHole) {
  EXPECT_THAT(order({{"new"}, {"c", 1, 2}, {"a", 1, 0}}, {3, 3, 3}), ElementsAre("a", "new", "c"));
}

TEST(Placement, AShrunkenWorldIsMadeDenseInTheOldOrder) {
  EXPECT_THAT(order({{"e", 1, 4}, {"c", 1, 2}, {"a", 1, 0}}, {2, 6, 6}),
              ElementsAre("a", "c", "e"));
}

TEST(Placement, SurvivorsGoBeforeNewcomersWhenThereIsNoRoomForAll) {
  EXPECT_THAT(order({{"new"}, {"b", 1, 1}, {"a", 1, 0}}, {1, 2, 2}), ElementsAre("a", "b"));
}

TEST(Placement, APreferredIndexIsGivenWhenItIsFree) {
  EXPECT_THAT(order({{"a", 1, -1, 2}, {"b", 1, -1, 0}, {"c"}}, {3, 3}), ElementsAre("b", "c", "a"));
  EXPECT_THAT(order({{"a", 1, -1, 1}, {"b", 1, 1}, {"c", 1, -1, 9}}, {3, 3, 2}),
              ElementsAre("a", "b", "c"));
}

TEST(Placement, SparesOnlyReplace) {
  const Candidate spare{"s", 1, -1, -1, true};
  EXPECT_THAT(order({{"a"}, {"b"}, spare}, {2, 4}), ElementsAre("a", "b"));
  EXPECT_THAT(order({{"a"}, spare}, {2, 4}), ElementsAre("a", "s"));
  EXPECT_THAT(order({spare, {"b", 1, 1}, {"c", 1, 2}}, {2, 4, 3}), ElementsAre("s", "b", "c"));
}

}  // namespace
}  // namespace accel::agent::placement_test
