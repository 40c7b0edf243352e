// Sums of pieces that lie anywhere in the arenas of the ranks.

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/shm_ranks.h"

namespace accel::shm::shm_pieces_test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using Ranks = test::ShmRanks;

// A cache line, a block and more than one, and what is a multiple of neither.
constexpr std::array<std::size_t, 6> kCounts = {1, 16, 5'003, 8'192, 30'001, 7};
constexpr double kFactor = 1.0 / 3.0;

float input_of(int rank, std::size_t piece, std::size_t i) {
  return static_cast<float>(rank + 1) * (0.1F + static_cast<float>((i + 37 * piece) % 1'013));
}

float sum_of(int world_size, std::size_t piece, std::size_t i) {
  float sum = input_of(0, piece, i) * static_cast<float>(kFactor);
  for (int rank = 1; rank < world_size; ++rank)
    sum += input_of(rank, piece, i) * static_cast<float>(kFactor);
  return sum;
}

// The pieces of a rank, in one room, in an order of its own.
class Pieces {
 public:
  explicit Pieces(ShmGroup& group) : rank_(group.rank()) {
    std::size_t all = 0;
    for (const std::size_t count : kCounts) all += count;
    room_ = or_throw(group.allocate(all * sizeof(float)));
    auto* next = reinterpret_cast<float*>(room_.get());
    pieces_.resize(kCounts.size());
    for (std::size_t i = 0; i < kCounts.size(); ++i) {
      const std::size_t piece = (i + static_cast<std::size_t>(rank_)) % kCounts.size();
      pieces_[piece] = {reinterpret_cast<std::byte*>(next), kCounts[piece]};
      next += kCounts[piece];
    }
  }
  void fill() const {
    for (std::size_t piece = 0; piece < kCounts.size(); ++piece) {
      for (std::size_t i = 0; i < kCounts[piece]; ++i)
        values_of(piece)[i] = input_of(rank_, piece, i);
    }
  }
  [[nodiscard]] float* values_of(std::size_t piece) const {
    return reinterpret_cast<float*>(pieces_[piece].data);
  }
  [[nodiscard]] std::vector<Piece>& list() { return pieces_; }

 private:
  int rank_;
  std::shared_ptr<std::byte> room_;
  std::vector<Piece> pieces_;
};

class ShmPiecesTest : public ::testing::TestWithParam<int> {};

TEST_P(ShmPiecesTest, EveryRankGetsTheSumOfAllWhereItsPiecesLie) {
  const int size = GetParam();
  Ranks(size).run([&](ShmGroup& group) {
    Pieces pieces(group);
    for (int round = 0; round < 3; ++round) {
      pieces.fill();
      ASSERT_TRUE(or_throw(group.all_reduce_pieces(pieces.list(), DataType::kFloat32, kFactor)));
      for (std::size_t piece = 0; piece < kCounts.size(); ++piece) {
        for (std::size_t i = 0; i < kCounts[piece]; ++i)
          ASSERT_EQ(pieces.values_of(piece)[i], sum_of(size, piece, i)) << piece << " " << i;
      }
    }
  });
}

// Each rank lacks one of the pieces, and one is of zeros everywhere.
TEST_P(ShmPiecesTest, EveryRankGetsItsPartAndWhatALackingPieceStandsForIsZero) {
  const int size = GetParam();
  Ranks(size).run([&](ShmGroup& group) {
    Pieces pieces(group);
    pieces.fill();
    const auto lacks = [](int rank, std::size_t piece) {
      return piece == 1 || static_cast<std::size_t>(rank) == piece;
    };
    std::vector<float> whole;
    for (std::size_t piece = 0; piece < kCounts.size(); ++piece) {
      if (lacks(group.rank(), piece)) pieces.list()[piece].data = nullptr;
      for (std::size_t i = 0; i < kCounts[piece]; ++i) {
        float sum = 0;
        for (int rank = 0; rank < size; ++rank)
          sum += lacks(rank, piece) ? 0.0F : input_of(rank, piece, i) * static_cast<float>(kFactor);
        whole.push_back(sum);
      }
    }
    const auto ranks = static_cast<std::size_t>(size);
    const std::size_t count = (whole.size() + ranks - 1) / ranks;
    whole.resize(count * ranks);
    if (const std::size_t rest = whole.size() - 43'220; rest > 0)
      pieces.list().push_back({nullptr, rest});
    std::vector<float> part(count, -1.0F);

    ASSERT_TRUE(or_throw(group.reduce_scatter_pieces(
        pieces.list(), test::bytes_of(part), count, DataType::kFloat32, kFactor)));

    const auto first = whole.begin() + group.rank() * static_cast<std::ptrdiff_t>(count);
    EXPECT_EQ(part, std::vector<float>(first, first + static_cast<std::ptrdiff_t>(count)));
  });
}

TEST_P(ShmPiecesTest, OneThatLiesElsewhereOnOneRankLeavesAllAsTheyWere) {
  const int size = GetParam();
  Ranks(size).run([&](ShmGroup& group) {
    Pieces pieces(group);
    pieces.fill();
    std::vector<float> elsewhere(kCounts[2], 5.0F);
    if (group.rank() == size - 1) pieces.list()[2].data = test::bytes_of(elsewhere);

    EXPECT_FALSE(or_throw(group.all_reduce_pieces(pieces.list(), DataType::kFloat32, kFactor)));

    EXPECT_EQ(pieces.values_of(3)[9], input_of(group.rank(), 3, 9));
    EXPECT_THAT(elsewhere, Each(5.0F));
    or_throw(group.barrier());
  });
}

INSTANTIATE_TEST_SUITE_P(OfRanks, ShmPiecesTest, ::testing::Values(1, 2, 3, 5));

TEST(ShmPieces, NobodysArenaIsNoError) {
  Ranks(2).run([](ShmGroup& group) {
    const std::vector<Piece> zeros = {{nullptr, 10}};
    std::vector<float> part(5);
    EXPECT_FALSE(or_throw(
        group.reduce_scatter_pieces(zeros, test::bytes_of(part), 5, DataType::kFloat32, 1.0)));
    EXPECT_FALSE(or_throw(group.all_reduce_pieces({}, DataType::kFloat32, 1.0)));
    or_throw(group.barrier());
  });
}

TEST(ShmPieces, MoreOfThemThanASlotCanNameAreLeftAlone) {
  Ranks(2).run([](ShmGroup& group) {
    const auto room = or_throw(group.allocate(sizeof(float)));
    const std::vector<Piece> many(1'000'000, {room.get(), 1});
    EXPECT_FALSE(or_throw(group.all_reduce_pieces(many, DataType::kFloat32, 1.0)));
    or_throw(group.barrier());
  });
}

// What a process that others must not look into is like.
TEST(ShmPieces, AnArenaThatCannotBeMappedLeavesAllAsTheyWere) {
  const Ranks ranks(3);
  const GroupMemory memory =
      or_throw(GroupMemory::map(ranks.memory().get(), ranks.options(0).shape));
  ranks.run([&](ShmGroup& group) {
    Pieces pieces(group);
    if (group.rank() == 1) ++memory.arena(1).start_time;
    for (int round = 0; round < 2; ++round)
      EXPECT_FALSE(or_throw(group.all_reduce_pieces(pieces.list(), DataType::kFloat32, kFactor)));
    or_throw(group.barrier());
  });
}

TEST(ShmPieces, OtherSizesAreAnErrorOnAllRanksThatNamesThePiece) {
  std::vector<std::string> said(3);
  Ranks(3).run([&](ShmGroup& group) {
    Pieces pieces(group);
    if (group.rank() == 1) {
      --pieces.list()[2].count;
      ++pieces.list()[5].count;
    }
    const auto done = group.all_reduce_pieces(pieces.list(), DataType::kFloat32, kFactor);
    if (!done) said[static_cast<std::size_t>(group.rank())] = done.error().message();
  });
  EXPECT_THAT(said[0], HasSubstr("piece 2 has 20012 bytes on rank 0, and 20008 on rank 1"));
  EXPECT_THAT(said[1], HasSubstr("piece 2 has 20008 bytes on rank 1, and 20012 on rank 0"));
  EXPECT_THAT(said[2], ::testing::Not(::testing::IsEmpty()));
}

TEST(ShmPieces, AnotherCollectiveMeanwhileIsNamed) {
  std::vector<std::string> said(2);
  Ranks(2).run([&](ShmGroup& group) {
    Pieces pieces(group);
    std::string error;
    if (group.rank() == 0) {
      const auto done = group.all_reduce_pieces(pieces.list(), DataType::kFloat32, kFactor);
      if (!done) error = done.error().message();
    } else if (const auto done = group.barrier(); !done) {
      error = done.error().message();
    }
    said[static_cast<std::size_t>(group.rank())] = error;
  });
  EXPECT_THAT(said, Each(HasSubstr("all_reduce of pieces of 172880 bytes, sum of float32")));
}

}  // namespace
}  // namespace accel::shm::shm_pieces_test
