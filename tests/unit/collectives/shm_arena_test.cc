// Tensors in memory that the other ranks can map, and all-reduces of them.

#include <cstring>
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libaccel/engine/shm/memory/arena.h"
#include "libaccel/tensors/alignment.h"
#include "tests/support/shm_ranks.h"

namespace accel::shm::shm_arena_test {
namespace {

using test::bytes_of;
using ::testing::Each;
using ::testing::HasSubstr;
using Ranks = test::ShmRanks;

float input_of(int rank, std::size_t i) {
  return static_cast<float>(rank + 1) * (0.1F + static_cast<float>(i % 1'013));
}

float sum_of(int world_size, std::size_t i) {
  float sum = input_of(0, i);
  for (int rank = 1; rank < world_size; ++rank) sum += input_of(rank, i);
  return sum;
}

TEST(ArenaTest, RoomIsZeroAndComesAgainWhenItWasGivenBack) {
  const auto arena = or_throw(Arena::create());
  std::byte* const first = or_throw(arena->allocate(100));
  std::byte* const second = or_throw(arena->allocate(kHugePage + 1));
  EXPECT_EQ(second - first, static_cast<std::ptrdiff_t>(kHugePage));
  std::memset(first, 1, 100);
  arena->release(first);
  std::byte* const again = or_throw(arena->allocate(kHugePage));
  EXPECT_EQ(again, first);
  EXPECT_THAT(std::vector<std::byte>(again, again + 100), Each(std::byte{0}));
  EXPECT_EQ(or_throw(arena->allocate(1)) - first, static_cast<std::ptrdiff_t>(3 * kHugePage));
}

TEST(ArenaTest, WhatItCannotHoldIsRefused) {
  const auto arena = or_throw(Arena::create());
  const auto room = arena->allocate(arena->size() + 1);
  ASSERT_FALSE(room);
  EXPECT_EQ(room.error().code(), ErrorCode::kOutOfMemory);
  std::byte outside{};
  EXPECT_FALSE(arena->contains(&outside, 1));
}

TEST(ArenaTest, OthersSeeTheSameBytesAndNothingOutside) {
  const auto arena = or_throw(Arena::create());
  std::byte* const room = or_throw(arena->allocate(8));
  const auto view = or_throw(ArenaView::open(or_throw(arena->offer())));
  room[7] = std::byte{5};
  EXPECT_EQ(view.at(arena->offset_of(room), 8)[7], std::byte{5});
  EXPECT_EQ(view.at(arena->size(), 1), nullptr);
  EXPECT_EQ(view.at(8, arena->size()), nullptr);
}

class ShmArenaTest : public ::testing::TestWithParam<int> {};

// Sizes around the small ones that go another way, a block, and slices that are uneven.
TEST_P(ShmArenaTest, AllReduceInPlaceGivesTheBitsOfTheWayThroughSlots) {
  const int size = GetParam();
  Ranks(size).run([&](ShmGroup& group) {
    for (const std::size_t count : {1UL, 4'096UL, 4'097UL, 5'003UL, 50'001UL, 300'000UL}) {
      const auto room = or_throw(group.allocate(count * sizeof(float)));
      auto* const values = reinterpret_cast<float*>(room.get());
      for (int round = 0; round < 3; ++round) {
        for (std::size_t i = 0; i < count; ++i) values[i] = input_of(group.rank(), i);
        or_throw(
            group.all_reduce(room.get(), room.get(), count, DataType::kFloat32, ReduceOp::kSum));
        for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(values[i], sum_of(size, i)) << i;
      }
    }
  });
}

TEST_P(ShmArenaTest, RanksWhoseDataLiesElsewhereAreReducedWithTheOthers) {
  const int size = GetParam();
  Ranks(size).run([&](ShmGroup& group) {
    constexpr std::size_t kCount = 20'000;
    const auto room = or_throw(group.allocate(kCount * sizeof(float)));
    std::vector<float> outside(kCount);
    for (int with_room = 0; with_room <= size; ++with_room) {  // so many have it in their arena
      const bool is_inside = group.rank() < with_room;
      float* const values = is_inside ? reinterpret_cast<float*>(room.get()) : outside.data();
      for (std::size_t i = 0; i < kCount; ++i) values[i] = input_of(group.rank(), i);
      auto* const bytes = reinterpret_cast<std::byte*>(values);
      or_throw(group.all_reduce(bytes, bytes, kCount, DataType::kFloat32, ReduceOp::kSum));
      for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(values[i], sum_of(size, i)) << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(OfRanks, ShmArenaTest, ::testing::Values(1, 2, 3, 5));

// What a process that others must not look into is like.
TEST(ShmArena, OneThatCannotBeMappedMakesAllGoThroughTheSlots) {
  const Ranks ranks(3);
  const GroupMemory memory =
      or_throw(GroupMemory::map(ranks.memory().get(), ranks.options(0).shape));
  ranks.run([&](ShmGroup& group) {
    constexpr std::size_t kCount = 20'000;
    const auto room = or_throw(group.allocate(kCount * sizeof(float)));
    if (group.rank() == 1) ++memory.arena(1).start_time;
    auto* const values = reinterpret_cast<float*>(room.get());
    for (int round = 0; round < 3; ++round) {
      for (std::size_t i = 0; i < kCount; ++i) values[i] = input_of(group.rank(), i);
      or_throw(
          group.all_reduce(room.get(), room.get(), kCount, DataType::kFloat32, ReduceOp::kSum));
      for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(values[i], sum_of(3, i)) << i;
    }
  });
}

TEST(ShmArena, RoomOutlivesTheGroup) {
  std::shared_ptr<std::byte> room;
  Ranks(1).run([&](ShmGroup& group) { room = or_throw(group.allocate(100)); });
  room.get()[99] = std::byte{1};
  EXPECT_EQ(room.get()[99], std::byte{1});
}

TEST(ShmArena, AnotherSizeThereIsAnErrorOnAllRanks) {
  std::vector<std::string> said(3);
  Ranks(3).run([&](ShmGroup& group) {
    const std::size_t count = group.rank() == 2 ? 30'000 : 20'000;
    const auto room = or_throw(group.allocate(count * sizeof(float)));
    const auto done =
        group.all_reduce(room.get(), room.get(), count, DataType::kFloat32, ReduceOp::kSum);
    if (!done) said[static_cast<std::size_t>(group.rank())] = done.error().message();
  });
  EXPECT_THAT(said, Each(HasSubstr("all_reduce of 80000 bytes")));
  EXPECT_THAT(said, Each(HasSubstr("all_reduce of 120000 bytes")));
}

}  // namespace
}  // namespace accel::shm::shm_arena_test
