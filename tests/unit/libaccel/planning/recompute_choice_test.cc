// The choice of what is computed again, against all choices that there are.

#include "libaccel/planning/recompute_choice.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::planning::recompute_choice_test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using Regions = std::vector<std::vector<RegionWay>>;

std::int64_t peak_of(const Regions& regions, const std::vector<std::size_t>& ways) {
  std::int64_t held = 0;
  std::int64_t peak = 0;
  for (std::size_t i = 0; i < regions.size(); ++i) {
    const RegionWay& way = regions[i][ways[i]];
    peak = std::max({peak, held + way.held, held + way.in_backward});
    held += way.held;
  }
  return peak;
}

double flops_of(const Regions& regions, const std::vector<std::size_t>& ways) {
  double flops = 0;
  for (std::size_t i = 0; i < regions.size(); ++i) flops += regions[i][ways[i]].flops;
  return flops;
}

// The fewest operations of all choices that fit.
std::optional<double> least_flops(const Regions& regions, std::int64_t budget) {
  std::optional<double> least;
  std::vector<std::size_t> ways(regions.size(), 0);
  while (true) {
    if (peak_of(regions, ways) <= budget) {
      const double flops = flops_of(regions, ways);
      least = std::min(least.value_or(flops), flops);
    }
    std::size_t i = 0;
    while (i < regions.size() && ++ways[i] == regions[i].size()) ways[i++] = 0;
    if (i == regions.size()) return least;
  }
}

Regions random_regions(std::mt19937& random) {
  const auto number = [&random](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  Regions regions(static_cast<std::size_t>(number(1, 6)));
  for (auto& ways : regions) {
    const int saved = number(1, 40);
    ways.push_back({saved, saved + number(0, 5), 0});
    for (int more = number(0, 2); more > 0; --more) {
      const int held = number(0, saved);
      ways.push_back({held, held + saved + number(0, 5), static_cast<double>(number(1, 30))});
    }
  }
  return regions;
}

TEST(RecomputeChoice, IsThatOfAllChoicesOnSmallCases) {
  int num_chosen = 0;
  int num_refused = 0;
  for (unsigned seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    const Regions regions = random_regions(random);
    const auto budget = std::uniform_int_distribution<std::int64_t>(0, 160)(random);

    const auto choice = choose_recomputed(regions, budget);
    const auto least = least_flops(regions, budget);

    ASSERT_EQ(choice.has_value(), least.has_value()) << "seed " << seed;
    if (!choice) {
      ++num_refused;
      continue;
    }
    ++num_chosen;
    EXPECT_EQ(choice->flops, *least) << "seed " << seed;
    EXPECT_EQ(flops_of(regions, choice->ways), choice->flops) << "seed " << seed;
    EXPECT_EQ(peak_of(regions, choice->ways), choice->peak) << "seed " << seed;
    EXPECT_LE(choice->peak, budget) << "seed " << seed;
  }
  EXPECT_GT(num_chosen, 100);
  EXPECT_GT(num_refused, 50);
}

TEST(RecomputeChoice, KeepsAllWhereAllFits) {
  const Regions regions(3, {{10, 10, 0}, {1, 11, 5}});
  const auto choice = choose_recomputed(regions, 30);
  ASSERT_TRUE(choice);
  EXPECT_THAT(choice->ways, Each(0));
  EXPECT_EQ(choice->peak, 30);
}

TEST(RecomputeChoice, ComputesOneLayerAgainWhereOneIsEnough) {
  const Regions regions(3, {{10, 10, 0}, {1, 11, 5}});
  const auto choice = choose_recomputed(regions, 21);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->flops, 5);
  // The backward of the last one is at 1 + 10 + 10, so a layer before it is the one.
  EXPECT_THAT(choice->ways, ::testing::AnyOf(ElementsAre(1, 0, 0), ElementsAre(0, 1, 0)));
}

TEST(RecomputeChoice, PrefersTheWayWithFewerOperations) {
  const Regions regions(2, {{10, 10, 0}, {6, 12, 1}, {1, 11, 8}});
  const auto choice = choose_recomputed(regions, 18);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->flops, 1);
}

TEST(RecomputeChoice, OfManyDifferentLayersFitsAndIsQuick) {
  std::mt19937 random(1);
  Regions regions;
  for (int i = 0; i < 96; ++i) {
    const auto saved = std::uniform_int_distribution<std::int64_t>(1 << 20, 1 << 26)(random);
    regions.push_back(
        {{saved, saved, 0}, {saved / 8, saved + saved / 8, static_cast<double>(saved) * 3.7}});
  }
  std::vector<std::size_t> all_again(regions.size(), 1);
  const std::int64_t budget = peak_of(regions, all_again) * 2;
  const auto choice = choose_recomputed(regions, budget);
  ASSERT_TRUE(choice);
  EXPECT_LE(peak_of(regions, choice->ways), budget);
  EXPECT_LT(choice->flops, flops_of(regions, all_again));
}

}  // namespace
}  // namespace accel::planning::recompute_choice_test
