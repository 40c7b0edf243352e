#include "libaccel/engine/shm/memory/buffer_location.h"

#include <vector>

#include <gtest/gtest.h>

namespace accel::shm::buffer_location_test {
namespace {

constexpr BufferLocation kNowhere;
constexpr BufferLocation kArena = {.where = BufferLocation::kInArena, .offset = 4096};
constexpr BufferLocation kReached = {.address = 0x1000};
constexpr BufferLocation kBoth = {.where = BufferLocation::kInArena, .address = 0x1000};

struct WayCase {
  const char* what;
  std::vector<BufferLocation> locations;
  bool can_map_arenas;
  ReductionPath way;
};

TEST(PlaceTest, TheWayOfAnAllReduceFollowsFromWhereAllHaveTheirData) {
  const std::vector<WayCase> cases = {
      {"nobody has a location", {kNowhere, kNowhere}, true, ReductionPath::kSlots},
      {"all in arenas", {kArena, kBoth}, true, ReductionPath::kInArenas},
      {"arenas before straight copies", {kBoth, kBoth}, true, ReductionPath::kInArenas},
      {"an arena that cannot be mapped", {kArena, kArena}, false, ReductionPath::kAnew},
      {"arenas that cannot be mapped, but reached",
       {kBoth, kBoth},
       false,
       ReductionPath::kStraight},
      {"all reached", {kReached, kReached}, true, ReductionPath::kStraight},
      {"one reached only", {kReached, kBoth}, true, ReductionPath::kStraight},
      {"one that cannot be reached", {kReached, kNowhere}, true, ReductionPath::kAnew},
      {"one in an arena", {kNowhere, kArena, kNowhere}, true, ReductionPath::kAnew},
  };
  for (const WayCase& one : cases)
    EXPECT_EQ(reduction_path(one.locations, one.can_map_arenas), one.way) << one.what;
}

TEST(PlaceTest, OneRefusalIsEnough) {
  const BufferLocation refused = {.where = BufferLocation::kRefused};
  EXPECT_TRUE(is_refused(std::vector<BufferLocation>{kNowhere, refused}));
  EXPECT_FALSE(is_refused(std::vector<BufferLocation>{kNowhere, kArena}));
}

}  // namespace
}  // namespace accel::shm::buffer_location_test
