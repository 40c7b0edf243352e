#include "libaccel/pager/unit_layout.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>

namespace accel::pager::unit_layout_test {
namespace {

using c10::ScalarType;
using ::testing::HasSubstr;

ParameterSpec spec(std::string name,
                   std::size_t bytes,
                   ScalarType dtype = ScalarType::Float,
                   bool is_trained = true) {
  return {std::move(name), dtype, bytes, is_trained};
}

std::string names_of(const UnitLayout& layout, std::size_t unit) {
  std::string names;
  for (const Slot& slot : layout.units.at(unit).slots)
    names += (names.empty() ? "" : " ") + layout.parameters[slot.parameter].name;
  return names;
}

TEST(UnitLayout, UnitsAreCutByBytesInTheOrderGiven) {
  const auto layout = lay_out({spec("a", 64), spec("b", 128), spec("c", 64)}, {2, 0, 1}, 128);

  ASSERT_EQ(layout.units.size(), 2u);
  EXPECT_EQ(names_of(layout, 0), "c a");
  EXPECT_EQ(names_of(layout, 1), "b");
  EXPECT_EQ(layout.places[1].unit, 1u);
  EXPECT_EQ(layout.largest_unit_bytes(), 128u);
  EXPECT_EQ(layout.total_bytes(), 256u);
}

TEST(UnitLayout, AParameterLargerThanAUnitIsAUnitOfItsOwn) {
  const auto layout = lay_out({spec("a", 4), spec("big", 4096), spec("b", 4)}, {}, 128);

  ASSERT_EQ(layout.units.size(), 3u);
  EXPECT_EQ(names_of(layout, 1), "big");
}

TEST(UnitLayout, OtherDtypesAndFrozenParametersHaveSegmentsOfTheirOwn) {
  const auto layout = lay_out({spec("w", 100),
                               spec("h", 6, ScalarType::BFloat16),
                               spec("frozen", 8, ScalarType::Float, false),
                               spec("bias", 12)},
                              {},
                              1 << 20);

  ASSERT_EQ(layout.units.size(), 1u);
  EXPECT_EQ(names_of(layout, 0), "w bias h frozen");
  const auto& segments = layout.units[0].segments;
  ASSERT_EQ(segments.size(), 3u);
  EXPECT_EQ(segments[0].num_slots, 2u);
  EXPECT_EQ(segments[0].bytes, 128u + 12u);
  EXPECT_EQ(segments[1].dtype, ScalarType::BFloat16);
  EXPECT_FALSE(segments[2].is_trained);
  EXPECT_EQ(layout.units[0].bytes, 128u + 64u + 64u + 64u);
}

TEST(UnitLayout, ThoseThatTheOrderLacksFollowAndRepeatedOnesCountOnce) {
  const auto layout =
      lay_out({spec("a", 4), spec("b", 4), spec("c", 4), spec("d", 0)}, {1, 1}, 1 << 20);

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
                (void)lay_out({spec("a", 4), spec("a", 4)}, {}, 64);
              }),
              HasSubstr("'a'"));
  EXPECT_THAT(message([] { (void)lay_out({spec("a", 4)}, {1}, 64); }),
              HasSubstr("parameter 1 of 1"));
  EXPECT_THAT(message([] { (void)lay_out({spec("a", 6)}, {}, 64); }), HasSubstr("6 bytes"));
}

// Random parameters, orders and limits: the rules of the header hold.
TEST(UnitLayout, NothingOverlapsAndNothingIsLost) {
  std::mt19937 random(7);
  const auto below = [&](std::size_t limit) { return std::size_t{random() % limit}; };
  for (int round = 0; round < 500; ++round) {
    std::vector<ParameterSpec> parameters;
    std::size_t count = below(20);
    for (std::size_t i = 0; i < count; ++i)
      parameters.push_back(spec("p" + std::to_string(i),
                                below(200) * 4,
                                below(3) == 0 ? ScalarType::BFloat16 : ScalarType::Float,
                                below(4) != 0));
    std::vector<std::size_t> order;
    for (std::size_t i = 0; count > 0 && i < below(20); ++i) order.push_back(below(count));
    const std::size_t limit = below(2000);
    const auto layout = lay_out(parameters, order, limit);

    std::size_t seen = 0;
    for (std::size_t u = 0; u < layout.units.size(); ++u) {
      const Unit& unit = layout.units[u];
      ASSERT_FALSE(unit.slots.empty());
      ASSERT_TRUE(unit.bytes <= limit || unit.slots.size() == 1);
      std::size_t end = 0;
      std::size_t next_slot = 0;
      for (const Segment& segment : unit.segments) {
        ASSERT_EQ(segment.first_slot, next_slot);
        ASSERT_EQ(segment.offset % kAlignment, 0u);
        for (std::size_t s = segment.first_slot; s < segment.first_slot + segment.num_slots; ++s) {
          const Slot& slot = unit.slots[s];
          ASSERT_GE(slot.offset, end);
          ASSERT_EQ(slot.offset % kAlignment, 0u);
          ASSERT_EQ(slot.bytes, parameters[slot.parameter].bytes);
          ASSERT_EQ(parameters[slot.parameter].dtype, segment.dtype);
          ASSERT_EQ(parameters[slot.parameter].is_trained, segment.is_trained);
          ASSERT_EQ(layout.places[slot.parameter].unit, u);
          ASSERT_EQ(layout.places[slot.parameter].slot, s);
          end = slot.offset + slot.bytes;
        }
        ASSERT_EQ(segment.offset + segment.bytes, end);
        next_slot += segment.num_slots;
      }
      ASSERT_EQ(next_slot, unit.slots.size());
      ASSERT_GE(unit.bytes, end);
      seen += unit.slots.size();
    }
    ASSERT_EQ(seen, count);
  }
}

}  // namespace
}  // namespace accel::pager::unit_layout_test
