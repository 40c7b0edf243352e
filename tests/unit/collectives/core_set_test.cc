#include "libaccel/engine/shm/memory/core_set.h"

#include <initializer_list>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

namespace accel::shm::core_set_test {
namespace {

// Rank by rank the cores that it may use; no words: not known.
bool has_core(std::initializer_list<std::uint64_t> masks, int rank) {
  std::vector<std::unique_ptr<CoreSet>> sets;
  std::vector<const CoreSet*> ranks;
  for (const std::uint64_t mask : masks) {
    sets.push_back(std::make_unique<CoreSet>());
    sets.back()->words[0].store(mask);
    ranks.push_back(sets.back().get());
  }
  return has_core_of_its_own(ranks, rank);
}

TEST(CoreSetTest, RanksThatAreBoundToACoreEachHaveOneEach) {
  EXPECT_TRUE(has_core({0b01, 0b10}, 0));
  EXPECT_TRUE(has_core({0b01, 0b10}, 1));
}

TEST(CoreSetTest, RanksThatMayUseAllCoresHaveOneEachWhereThereAreEnough) {
  EXPECT_TRUE(has_core({0b11, 0b11}, 0));
  EXPECT_FALSE(has_core({0b11, 0b11, 0b11}, 0));
  EXPECT_FALSE(has_core({0b1, 0b1}, 1));
}

TEST(CoreSetTest, OnlyRanksThatShareACoreAreCounted) {
  EXPECT_TRUE(has_core({0b0001, 0b1110, 0b1110}, 0));
  EXPECT_TRUE(has_core({0b0001, 0b1110, 0b1110}, 2));
  EXPECT_FALSE(has_core({0b0001, 0b0110, 0b0001}, 0));
  EXPECT_TRUE(has_core({0b0001, 0b0110, 0b0001}, 1));
}

TEST(CoreSetTest, WhatIsNotKnownIsTakenForEnough) {
  EXPECT_TRUE(has_core({0b1, 0, 0b1}, 0));
}

TEST(CoreSetTest, OfThisThreadHasACore) {
  CoreSet own = {};
  read_own_cores(own);
  std::uint64_t any = 0;
  for (const auto& word : own.words) any |= word.load();
  EXPECT_NE(any, 0U);
}

}  // namespace
}  // namespace accel::shm::core_set_test
