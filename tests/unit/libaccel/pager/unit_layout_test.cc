// Units and shards: every element has one place and one owner.

#include "libaccel/tensors/unit_layout.h"

#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>

#include "tests/support/test_budget.h"

namespace accel::pager::unit_layout_test {
namespace {

using c10::ScalarType;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

PlannedParameter floats(const char* name, std::int64_t numel, int group = kNoGroup) {
  return {.name = name, .numel = numel, .dtype = c10::kFloat, .group = group};
}

std::vector<std::size_t> parameters_of(const Unit& unit) {
  std::vector<std::size_t> parameters;
  for (const Slot& slot : unit.slots) parameters.push_back(slot.parameter);
  return parameters;
}

TEST(UnitPlan, BeginsEachParameterOnACacheLineAndDividesTheUnitEvenly) {
  const auto units = plan_units({floats("a", 3), floats("b", 17)}, 2, 1 << 20);
  ASSERT_EQ(units.size(), 1U);
  EXPECT_EQ(units[0].slots[0].offset, 0);
  EXPECT_EQ(units[0].slots[1].offset, 16);
  // 16 + 32 elements in use; 24 for each of two ranks, rounded up to 16s.
  EXPECT_EQ(units[0].shard_numel, 32);
  EXPECT_EQ(units[0].numel(), 64);
  EXPECT_EQ(units[0].bytes(), 256U);
}

TEST(UnitPlan, CutsBeforeTheParameterThatWouldExceedTheLimit) {
  const auto units = plan_units({floats("a", 100), floats("b", 100), floats("c", 100)}, 1, 900);
  ASSERT_EQ(units.size(), 2U);
  EXPECT_THAT(parameters_of(units[0]), ElementsAre(0, 1));
  EXPECT_THAT(parameters_of(units[1]), ElementsAre(2));
}

TEST(UnitPlan, GivesAParameterAboveTheLimitAUnitOfItsOwn) {
  const auto units = plan_units({floats("a", 10), floats("big", 1000), floats("c", 10)}, 1, 400);
  ASSERT_EQ(units.size(), 3U);
  EXPECT_THAT(parameters_of(units[1]), ElementsAre(1));
}

TEST(UnitPlan, KeepsAGroupTogetherWhateverItsSize) {
  const auto units =
      plan_units({floats("a", 1000, 0), floats("b", 1000, 1), floats("c", 1000, 0)}, 1, 400);
  ASSERT_EQ(units.size(), 2U);
  EXPECT_THAT(parameters_of(units[0]), ElementsAre(0, 2));
}

TEST(UnitPlan, NeverMixesDtypesInAUnit) {
  std::vector<PlannedParameter> parameters{floats("a", 10), floats("b", 10)};
  parameters[1].dtype = c10::kBFloat16;
  const auto units = plan_units(parameters, 1, 1 << 20);
  ASSERT_EQ(units.size(), 2U);
  EXPECT_EQ(units[1].dtype, c10::kBFloat16);
}

TEST(UnitPlan, LeavesParametersWithoutElementsOut) {
  EXPECT_TRUE(plan_units({floats("empty", 0)}, 4, 1 << 20).empty());
}

TEST(UnitPlan, GivesARankThatOnlyPaddingFallsToNoPiece) {
  const auto units = plan_units({floats("a", 5)}, 4, 1 << 20);
  EXPECT_EQ(pieces_of(units[0], 0).size(), 1U);
  EXPECT_TRUE(pieces_of(units[0], 3).empty());
}

TEST(UnitPlan, ByTensorGivesTheLargestToTheRankWithLeast) {
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

TEST(UnitPlan, ByTensorEvensOutOverUnitsWhatOneUnitCannot) {
  const auto units =
      plan_units({floats("a", 64, 0), floats("b", 64, 1)}, 2, 1 << 20, ShardCut::kByTensor);
  EXPECT_EQ(pieces_of(units[0], 0).size(), 1U);
  EXPECT_EQ(pieces_of(units[1], 1).size(), 1U);
  EXPECT_EQ(used_numel(units[1], 0), 0);
  EXPECT_EQ(used_numel(units[1], 1), 64);
}

class UnitPlans : public ::testing::TestWithParam<ShardCut> {};

INSTANTIATE_TEST_SUITE_P(Cuts, UnitPlans, ::testing::Values(ShardCut::kEven, ShardCut::kByTensor));

TEST_P(UnitPlans, OwnEveryElementOfEveryParameterOnceWhateverTheModelAndTheWorldSize) {
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

std::string names_of(const UnitLayout& layout, std::size_t unit) {
  std::string names;
  for (const Slot& slot : layout.units.at(unit).slots)
    names += (names.empty() ? "" : " ") + layout.parameters[slot.parameter].name;
  return names;
}

TEST(UnitLayout, UnitsAreCutByBytesInTheOrderGiven) {
  const auto layout = lay_out({floats("a", 16), floats("b", 32), floats("c", 16)}, {2, 0, 1}, 128);

  ASSERT_EQ(layout.units.size(), 2u);
  EXPECT_EQ(names_of(layout, 0), "c a");
  EXPECT_EQ(names_of(layout, 1), "b");
  EXPECT_EQ(layout.places[1].unit, 1u);
  EXPECT_EQ(layout.units[0].bytes(), 128u);
  EXPECT_EQ(layout.units[1].bytes(), 128u);
}

TEST(UnitLayout, AParameterLargerThanAUnitIsAUnitOfItsOwn) {
  const auto layout = lay_out({floats("a", 1), floats("big", 1024), floats("b", 1)}, {}, 128);

  ASSERT_EQ(layout.units.size(), 3u);
  EXPECT_EQ(names_of(layout, 1), "big");
}

TEST(UnitLayout, OtherDtypesHaveUnitsOfTheirOwn) {
  const auto layout = lay_out(
      {floats("w", 25), {.name = "h", .numel = 3, .dtype = c10::kBFloat16}, floats("bias", 3)},
      {},
      1 << 20);

  ASSERT_EQ(layout.units.size(), 2u);
  EXPECT_EQ(names_of(layout, 0), "w bias");
  EXPECT_EQ(names_of(layout, 1), "h");
  EXPECT_EQ(layout.units[0].bytes_of(layout.units[0].slots[1].offset), 128u);
  EXPECT_EQ(layout.units[0].bytes(), 128u + 64u);
  EXPECT_EQ(layout.units[1].dtype, ScalarType::BFloat16);
  EXPECT_EQ(layout.units[1].bytes(), 64u);
}

TEST(UnitLayout, ThoseThatTheOrderLacksFollowAndRepeatedOnesCountOnce) {
  const auto layout =
      lay_out({floats("a", 1), floats("b", 1), floats("c", 1), floats("d", 0)}, {1, 1}, 1 << 20);

  EXPECT_EQ(names_of(layout, 0), "b a c d");
}

TEST(UnitLayout, WhatCannotBeLaidOutIsNamed) {
  const auto message = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  };
  EXPECT_THAT(message([] {
                (void)lay_out({floats("a", 1), floats("a", 1)}, {}, 64);
              }),
              HasSubstr("'a'"));
  EXPECT_THAT(message([] { (void)lay_out({floats("a", 1)}, {1}, 64); }),
              HasSubstr("parameter 1 of 1"));
}

// Random parameters, orders and limits: the rules of the header hold.
TEST(UnitLayout, NothingOverlapsAndNothingIsLost) {
  std::mt19937 random(7);
  const auto below = [&](std::size_t limit) { return std::size_t{random() % limit}; };
  for (int round = 0; round < 500; ++round) {
    std::vector<PlannedParameter> parameters;
    std::size_t count = below(20);
    for (std::size_t i = 0; i < count; ++i)
      parameters.push_back({.name = "p" + std::to_string(i),
                            .numel = static_cast<std::int64_t>(below(400)),
                            .dtype = below(3) == 0 ? ScalarType::BFloat16 : ScalarType::Float});
    std::vector<std::size_t> order;
    for (std::size_t i = 0; count > 0 && i < below(20); ++i) order.push_back(below(count));
    const std::size_t limit = below(2000);
    const auto layout = lay_out(parameters, order, limit);

    std::size_t seen = 0;
    for (std::size_t u = 0; u < layout.units.size(); ++u) {
      const Unit& unit = layout.units[u];
      ASSERT_FALSE(unit.slots.empty());
      ASSERT_TRUE(unit.bytes() <= limit || unit.slots.size() == 1);
      std::int64_t end = 0;
      for (std::size_t s = 0; s < unit.slots.size(); ++s) {
        const Slot& slot = unit.slots[s];
        ASSERT_GE(slot.offset, end);
        ASSERT_EQ(unit.bytes_of(slot.offset) % 64, 0u);
        ASSERT_EQ(slot.numel, parameters[slot.parameter].numel);
        ASSERT_EQ(parameters[slot.parameter].dtype, unit.dtype);
        ASSERT_EQ(layout.places[slot.parameter].unit, u);
        ASSERT_EQ(layout.places[slot.parameter].slot, s);
        end = slot.offset + slot.numel;
      }
      ASSERT_GE(unit.numel(), end);
      seen += unit.slots.size();
    }
    ASSERT_EQ(seen, count);
  }
}

}  // namespace
}  // namespace accel::pager::unit_layout_test
