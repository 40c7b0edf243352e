// Units and shards: every element has one place and one owner.

#include "libaccel/sharding/shard_plan.h"

#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/test_budget.h"

namespace accel::sharding::shard_plan_test {
namespace {

using ::testing::ElementsAre;

PlannedParameter floats(const char* name, std::int64_t numel, int group = kNoGroup) {
  return {.name = name, .numel = numel, .dtype = c10::kFloat, .group = group};
}

std::vector<std::size_t> parameters_of(const Unit& unit) {
  std::vector<std::size_t> parameters;
  for (const Slot& slot : unit.slots) parameters.push_back(slot.parameter);
  return parameters;
}

TEST(ShardPlan, BeginsEachParameterOnACacheLineAndDividesTheUnitEvenly) {
  const auto units = plan_units({floats("a", 3), floats("b", 17)}, 2, 1 << 20);
  ASSERT_EQ(units.size(), 1U);
  EXPECT_EQ(units[0].slots[0].offset, 0);
  EXPECT_EQ(units[0].slots[1].offset, 16);
  // 16 + 32 elements in use; 24 for each of two ranks, rounded up to 16s.
  EXPECT_EQ(units[0].shard_numel, 32);
}

TEST(ShardPlan, CutsBeforeTheParameterThatWouldExceedTheLimit) {
  const auto units = plan_units({floats("a", 100), floats("b", 100), floats("c", 100)}, 1, 900);
  ASSERT_EQ(units.size(), 2U);
  EXPECT_THAT(parameters_of(units[0]), ElementsAre(0, 1));
  EXPECT_THAT(parameters_of(units[1]), ElementsAre(2));
}

TEST(ShardPlan, GivesAParameterAboveTheLimitAUnitOfItsOwn) {
  const auto units = plan_units({floats("a", 10), floats("big", 1000), floats("c", 10)}, 1, 400);
  ASSERT_EQ(units.size(), 3U);
  EXPECT_THAT(parameters_of(units[1]), ElementsAre(1));
}

TEST(ShardPlan, KeepsAGroupTogetherWhateverItsSize) {
  const auto units =
      plan_units({floats("a", 1000, 0), floats("b", 1000, 1), floats("c", 1000, 0)}, 1, 400);
  ASSERT_EQ(units.size(), 2U);
  EXPECT_THAT(parameters_of(units[0]), ElementsAre(0, 2));
}

TEST(ShardPlan, NeverMixesDtypesInAUnit) {
  std::vector<PlannedParameter> parameters{floats("a", 10), floats("b", 10)};
  parameters[1].dtype = c10::kBFloat16;
  const auto units = plan_units(parameters, 1, 1 << 20);
  ASSERT_EQ(units.size(), 2U);
  EXPECT_EQ(units[1].dtype, c10::kBFloat16);
}

TEST(ShardPlan, LeavesParametersWithoutElementsOut) {
  EXPECT_TRUE(plan_units({floats("empty", 0)}, 4, 1 << 20).empty());
}

TEST(ShardPlan, GivesARankThatOnlyPaddingFallsToNoPiece) {
  const auto units = plan_units({floats("a", 5)}, 4, 1 << 20);
  EXPECT_EQ(pieces_of(units[0], 0).size(), 1U);
  EXPECT_TRUE(pieces_of(units[0], 3).empty());
}

TEST(ShardPlan, ByTensorGivesTheLargestToTheRankWithLeast) {
  const auto units =
      plan_units({floats("a", 16), floats("b", 64), floats("c", 48), floats("d", 32)},
                 2,
                 1 << 20,
                 ShardCut::kByTensor);
  ASSERT_EQ(units.size(), 1U);
  EXPECT_EQ(units[0].shard_numel, 80);  // b, a | c, d
  EXPECT_THAT(parameters_of(units[0]), ElementsAre(1, 0, 2, 3));
  EXPECT_EQ(units[0].slots[2].offset, 80);
}

TEST(ShardPlan, ByTensorEvensOutOverUnitsWhatOneUnitCannot) {
  const auto units =
      plan_units({floats("a", 64, 0), floats("b", 64, 1)}, 2, 1 << 20, ShardCut::kByTensor);
  EXPECT_EQ(pieces_of(units[0], 0).size(), 1U);
  EXPECT_EQ(pieces_of(units[1], 1).size(), 1U);
  EXPECT_EQ(used_numel(units[1], 0), 0);
  EXPECT_EQ(used_numel(units[1], 1), 64);
}

class ShardPlans : public ::testing::TestWithParam<ShardCut> {};

INSTANTIATE_TEST_SUITE_P(Cuts, ShardPlans, ::testing::Values(ShardCut::kEven, ShardCut::kByTensor));

TEST_P(ShardPlans, OwnEveryElementOfEveryParameterOnceWhateverTheModelAndTheWorldSize) {
  std::mt19937_64 random(test::test_seed());
  for (int round = 0; round < 1000; ++round) {
    const int world_size = 1 + static_cast<int>(random() % 7);
    std::vector<PlannedParameter> parameters(1 + random() % 12);
    for (PlannedParameter& parameter : parameters) {
      parameter.numel = static_cast<std::int64_t>(random() % 200);
      parameter.dtype = random() % 4 == 0 ? c10::kDouble : c10::kFloat;
      parameter.group = random() % 3 == 0 ? static_cast<int>(random() % 3) : kNoGroup;
    }
    const auto units = plan_units(
        parameters, world_size, 1 + static_cast<std::int64_t>(random() % 2000), GetParam());
    std::vector<std::int64_t> owned(parameters.size());
    for (const Unit& unit : units) {
      // Nothing lies upon another, in the order that is promised.
      std::int64_t end = 0;
      for (const Slot& slot : unit.slots) {
        EXPECT_GE(slot.offset, end);
        end = slot.offset + slot.numel;
      }
      for (int rank = 0; rank < world_size; ++rank) {
        for (const Piece& piece : pieces_of(unit, rank)) {
          // The pieces of a parameter come in rank order, without gaps.
          EXPECT_EQ(piece.parameter_offset, owned[piece.parameter]);
          EXPECT_GE(piece.unit_offset, rank * unit.shard_numel);
          EXPECT_LE(piece.unit_offset + piece.numel, (rank + 1) * unit.shard_numel);
          owned[piece.parameter] += piece.numel;
          if (GetParam() == ShardCut::kByTensor) {
            EXPECT_EQ(piece.numel, parameters[piece.parameter].numel);
          }
        }
      }
    }
    for (std::size_t i = 0; i < parameters.size(); ++i) EXPECT_EQ(owned[i], parameters[i].numel);
  }
}

}  // namespace
}  // namespace accel::sharding::shard_plan_test
