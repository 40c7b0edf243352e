#include "launcher/merge/box.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::launcher {
namespace {

using Sizes = std::vector<std::uint64_t>;
using ::testing::ElementsAre;
using ::testing::Pair;

std::vector<std::pair<std::uint64_t, std::uint64_t>> rows_of(const Box& box, const Sizes& shape) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> all;
  BoxRows rows(box, shape);
  do {
    all.emplace_back(rows.element(), rows.length());
  } while (rows.next());
  return all;
}

TEST(Box, RowsOfTheFirstDimensionAreOneRange) {
  EXPECT_THAT(rows_of({{2, 0, 0}, {2, 3, 4}}, {5, 3, 4}), ElementsAre(Pair(24, 24)));
  EXPECT_THAT(rows_of({{0, 0}, {5, 3}}, {5, 3}), ElementsAre(Pair(0, 15)));
}

TEST(Box, ColumnsAreARangeInEachRow) {
  EXPECT_THAT(rows_of({{0, 2}, {3, 2}}, {3, 4}), ElementsAre(Pair(2, 2), Pair(6, 2), Pair(10, 2)));
}

TEST(Box, RowsOfAMiddleDimensionFollowEachOtherInOrder) {
  EXPECT_THAT(rows_of({{0, 1, 0}, {2, 1, 5}}, {2, 3, 5}), ElementsAre(Pair(5, 5), Pair(20, 5)));
  EXPECT_THAT(rows_of({{0, 1, 1}, {2, 2, 1}}, {2, 3, 2}),
              ElementsAre(Pair(3, 1), Pair(5, 1), Pair(9, 1), Pair(11, 1)));
}

TEST(Box, ASingleValueHasOneRow) {
  EXPECT_THAT(rows_of({{}, {}}, {}), ElementsAre(Pair(0, 1)));
}

TEST(Box, VolumeKnowsItsOverflow) {
  EXPECT_EQ(volume(Sizes{3, 4}), 12);
  EXPECT_EQ(volume(Sizes{}), 1);
  EXPECT_EQ(volume(Sizes{1ull << 40, 1ull << 40, 0}), 0);
  EXPECT_EQ(volume(Sizes{1ull << 40, 1ull << 40}), std::nullopt);
}

TEST(Box, IsWithinDoesNotWrap) {
  EXPECT_TRUE(is_within({{2}, {3}}, Sizes{5}));
  EXPECT_FALSE(is_within({{3}, {3}}, Sizes{5}));
  EXPECT_FALSE(is_within({{~0ull}, {2}}, Sizes{5}));
  EXPECT_FALSE(is_within({{2}, {~0ull}}, Sizes{5}));
}

TEST(Box, FindsTheTwoThatOverlap) {
  const std::vector<Box> apart = {{{0, 2}, {4, 2}}, {{0, 0}, {4, 2}}, {{4, 0}, {1, 4}}};
  EXPECT_FALSE(find_overlap(apart));
  std::vector<Box> meeting = apart;
  meeting.push_back({{3, 3}, {1, 1}});
  const auto found = find_overlap(meeting);
  ASSERT_TRUE(found);
  EXPECT_THAT(std::set({found->first, found->second}), ElementsAre(0, 3));
  EXPECT_TRUE(find_overlap(std::vector<Box>{{{}, {}}, {{}, {}}}));  // one value, saved twice
}

}  // namespace
}  // namespace accel::launcher
