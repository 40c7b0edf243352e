#include "checkpoint_tools/merge/box.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::launcher::box_test {
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

TEST(Box, TheyCoverAShapeWhenEachElementIsInOne) {
  const Sizes shape = {5, 4};
  const std::vector<Box> apart = {{{0, 2}, {4, 2}}, {{0, 0}, {4, 2}}, {{4, 0}, {1, 4}}};
  EXPECT_EQ(cover_exactly(apart, shape), true);
  std::vector<Box> twice = apart;
  twice.push_back({{3, 3}, {1, 1}});
  EXPECT_EQ(cover_exactly(twice, shape), false);
  EXPECT_EQ(cover_exactly(std::span(apart).first(2), shape), false);  // a hole
  // As many elements as there are, one of them twice and one not at all.
  EXPECT_EQ(cover_exactly(std::vector<Box>{{{0}, {2}}, {{1}, {1}}}, Sizes{3}), false);
  // Corners in the right places do not suffice.
  EXPECT_EQ(
      cover_exactly(
          std::vector<Box>{{{0, 0}, {1, 1}}, {{1, 1}, {1, 1}}, {{0, 0}, {1, 1}}, {{1, 1}, {1, 1}}},
          Sizes{2, 2}),
      false);
}

TEST(Box, MoreCornersThanAllowedAreNotCompared) {
  const std::vector<Box> quarters = {
      {{0, 0}, {1, 1}}, {{0, 1}, {1, 1}}, {{1, 0}, {1, 1}}, {{1, 1}, {1, 1}}};
  EXPECT_EQ(cover_exactly(quarters, Sizes{2, 2}, 16), true);
  EXPECT_EQ(cover_exactly(quarters, Sizes{2, 2}, 15), std::nullopt);
}

TEST(Box, AShapeOfOneOrNoElementIsCoveredToo) {
  EXPECT_EQ(cover_exactly(std::vector<Box>{{{}, {}}}, Sizes{}), true);
  EXPECT_EQ(cover_exactly(std::vector<Box>{{{}, {}}, {{}, {}}}, Sizes{}), false);  // saved twice
  EXPECT_EQ(cover_exactly({}, Sizes{}), false);
  EXPECT_EQ(cover_exactly({}, Sizes{3, 0}), true);
  EXPECT_EQ(cover_exactly({}, Sizes{3}), false);
  EXPECT_EQ(cover_exactly(std::vector<Box>{{{0, 0}, {3, 2}}}, Sizes{3, 2}), true);
}

TEST(Box, CoversOfThreeDimensionsAndOfLargeNumbersAreExact) {
  std::vector<Box> bricks;
  for (std::uint64_t x = 0; x < 4; ++x)
    for (std::uint64_t y = 0; y < 3; ++y)
      for (std::uint64_t z = 0; z < 2; ++z) bricks.push_back({{x, 2 * y, 5 * z}, {1, 2, 5}});
  EXPECT_EQ(cover_exactly(bricks, Sizes{4, 6, 10}), true);
  bricks[7].offsets[2] = 5;
  bricks[8].offsets[0] = 0;
  EXPECT_EQ(cover_exactly(bricks, Sizes{4, 6, 10}), false);
  const std::uint64_t half = std::uint64_t{1} << 31;
  const std::vector<Box> large = {{{0, 0}, {half, 2 * half - 1}},
                                  {{half, 0}, {half - 1, half}},
                                  {{half, half}, {half - 1, half - 1}}};
  EXPECT_EQ(cover_exactly(large, Sizes{2 * half - 1, 2 * half - 1}), true);
}

// Columns beside as many rows: along each dimension half of them meet all others.
TEST(Box, ManyThatMeetAlongEachDimensionTakeNoComparisonOfPairs) {
  constexpr std::uint64_t kNum = 100'000;
  std::vector<Box> boxes;
  for (std::uint64_t i = 0; i < kNum; ++i) boxes.push_back({{0, i}, {kNum, 1}});
  for (std::uint64_t i = 0; i < kNum; ++i) boxes.push_back({{i, kNum}, {1, kNum}});
  EXPECT_EQ(cover_exactly(boxes, Sizes{kNum, 2 * kNum}), true);
  boxes.back().offsets[0] = 0;
  EXPECT_EQ(cover_exactly(boxes, Sizes{kNum, 2 * kNum}), false);
}

TEST(Box, MoreDimensionsThanAnyModelDividesAreNotCompared) {
  const Box box{Sizes(9), Sizes(9, 1)};
  EXPECT_EQ(cover_exactly(std::vector<Box>{box}, Sizes(9, 2)), std::nullopt);
}

}  // namespace
}  // namespace accel::launcher::box_test
