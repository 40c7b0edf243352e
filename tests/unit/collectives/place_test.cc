#include "libaccel/engine/shm/memory/place.h"

#include <vector>

#include <gtest/gtest.h>

namespace accel::shm::place_test {
namespace {

constexpr Place kNowhere;
constexpr Place kArena = {.where = Place::kInArena, .offset = 4096};
constexpr Place kReached = {.address = 0x1000};
constexpr Place kBoth = {.where = Place::kInArena, .address = 0x1000};

struct WayCase {
  const char* what;
  std::vector<Place> places;
  bool can_map_arenas;
  Way way;
};

TEST(PlaceTest, TheWayOfAnAllReduceFollowsFromWhereAllHaveTheirData) {
  const std::vector<WayCase> cases = {
      {"nobody has a place", {kNowhere, kNowhere}, true, Way::kSlots},
      {"all in arenas", {kArena, kBoth}, true, Way::kInArenas},
      {"arenas before straight copies", {kBoth, kBoth}, true, Way::kInArenas},
      {"an arena that cannot be mapped", {kArena, kArena}, false, Way::kAnew},
      {"arenas that cannot be mapped, but reached", {kBoth, kBoth}, false, Way::kStraight},
      {"all reached", {kReached, kReached}, true, Way::kStraight},
      {"one reached only", {kReached, kBoth}, true, Way::kStraight},
      {"one that cannot be reached", {kReached, kNowhere}, true, Way::kAnew},
      {"one in an arena", {kNowhere, kArena, kNowhere}, true, Way::kAnew},
  };
  for (const WayCase& one : cases)
    EXPECT_EQ(way_of(one.places, one.can_map_arenas), one.way) << one.what;
}

TEST(PlaceTest, OneRefusalIsEnough) {
  const Place refused = {.where = Place::kRefused};
  EXPECT_TRUE(is_refused(std::vector<Place>{kNowhere, refused}));
  EXPECT_FALSE(is_refused(std::vector<Place>{kNowhere, kArena}));
}

}  // namespace
}  // namespace accel::shm::place_test
