#include "libaccel/engine/shm/group/shm_group.h"

#include <latch>
#include <random>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/shm_ranks.h"
#include "tests/support/test_budget.h"

namespace accel::shm::shm_group_test {
namespace {

using namespace std::chrono_literals;
using test::bytes_of;
using test::letter_from;
using test::letter_to;
using test::sources_of;
using test::targets_of;
using ::testing::HasSubstr;
using Ranks = test::ShmRanks;

// What rank `rank` brings; another thing in every round.
std::vector<float> input_of(int rank, std::size_t count, unsigned round = 0) {
  std::mt19937 random(static_cast<unsigned>(rank) * 1'000 + round);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<float> sum_of(int world_size, std::size_t count, unsigned round = 0) {
  std::vector<float> sum = input_of(0, count, round);
  for (int rank = 1; rank < world_size; ++rank) {
    const auto next = input_of(rank, count, round);
    for (std::size_t i = 0; i < count; ++i) sum[i] += next[i];
  }
  return sum;
}

// Below, at and above a slot, and where slices are uneven; the last one takes the ranks above two past kDirectBytes.
constexpr std::size_t kCounts[] = {0, 1, 3, 1023, 1024, 1025, 5'003};

class ShmGroupTest : public ::testing::TestWithParam<int> {};

TEST_P(ShmGroupTest, AllReduceGivesEveryRankTheSameBitsInTheOrderOfTheRanks) {
  const int size = GetParam();
  Ranks(size).run([&](ShmGroup& group) {
    for (const std::size_t count : kCounts) {
      auto values = input_of(group.rank(), count);
      or_throw(group.all_reduce(
          bytes_of(values), bytes_of(values), count, DataType::kFloat32, ReduceOp::kSum));
      EXPECT_EQ(values, sum_of(size, count)) << count;
    }
  });
}

TEST_P(ShmGroupTest, ReduceGivesItToTheRootAlone) {
  const int size = GetParam();
  Ranks(size).run([&](ShmGroup& group) {
    for (const std::size_t count : kCounts) {
      for (int root = 0; root < size; ++root) {
        const auto in = input_of(group.rank(), count);
        std::vector<float> out(count, -1.0F);
        or_throw(group.reduce(
            bytes_of(in), bytes_of(out), count, DataType::kFloat32, ReduceOp::kSum, root));
        EXPECT_EQ(out,
                  group.rank() == root ? sum_of(size, count) : std::vector<float>(count, -1.0F));
      }
    }
  });
}

TEST_P(ShmGroupTest, ReduceScatterGivesEachRankItsPart) {
  const int size = GetParam();
  Ranks(size).run([&](ShmGroup& group) {
    for (const std::size_t count : kCounts) {
      const auto all = input_of(group.rank(), count * static_cast<std::size_t>(size));
      std::vector<const std::byte*> in;
      for (int rank = 0; rank < size; ++rank)
        in.push_back(bytes_of(all) + static_cast<std::size_t>(rank) * count * sizeof(float));
      std::vector<float> out(count);
      or_throw(group.reduce_scatter(in, bytes_of(out), count, DataType::kFloat32, ReduceOp::kSum));
      const auto sums = sum_of(size, count * static_cast<std::size_t>(size));
      const auto begin = sums.begin() + static_cast<std::ptrdiff_t>(count) * group.rank();
      EXPECT_EQ(out, std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(count)));
    }
  });
}

TEST_P(ShmGroupTest, BroadcastGivesAllWhatTheRootHas) {
  const int size = GetParam();
  Ranks(size).run([&](ShmGroup& group) {
    for (const std::size_t count : kCounts) {
      for (int root = 0; root < size; ++root) {
        auto values = input_of(group.rank(), count);
        or_throw(group.broadcast(bytes_of(values), count * sizeof(float), root));
        EXPECT_EQ(values, input_of(root, count));
      }
    }
  });
}

TEST_P(ShmGroupTest, AllGatherAndGatherPutEachRanksDataInItsPlace) {
  const int size = GetParam();
  Ranks(size).run([&](ShmGroup& group) {
    for (const std::size_t count : kCounts) {
      const auto in = input_of(group.rank(), count);
      std::vector<std::vector<float>> gathered(static_cast<std::size_t>(size),
                                               std::vector<float>(count, -1.0F));
      auto at_root = gathered;
      std::vector<std::byte*> out;
      std::vector<std::byte*> root_out;
      for (auto& part : gathered) out.push_back(bytes_of(part));
      for (auto& part : at_root) root_out.push_back(bytes_of(part));
      or_throw(group.all_gather(bytes_of(in), out, count * sizeof(float)));
      or_throw(group.gather(bytes_of(in), root_out, count * sizeof(float), size - 1));
      for (int rank = 0; rank < size; ++rank) {
        EXPECT_EQ(gathered[static_cast<std::size_t>(rank)], input_of(rank, count));
        EXPECT_EQ(
            at_root[static_cast<std::size_t>(rank)],
            group.rank() == size - 1 ? input_of(rank, count) : std::vector<float>(count, -1.0F));
      }
    }
  });
}

TEST_P(ShmGroupTest, ScatterAndAllToAllSendEachRankItsPiece) {
  const int size = GetParam();
  Ranks(size).run([&](ShmGroup& group) {
    for (const std::size_t count : kCounts) {
      // The piece that rank `from` has for rank `to`.
      const auto piece = [&](int from, int to) {
        return input_of(from, count, static_cast<unsigned>(to));
      };
      std::vector<std::vector<float>> pieces;
      std::vector<std::vector<float>> received(static_cast<std::size_t>(size),
                                               std::vector<float>(count));
      std::vector<const std::byte*> in;
      std::vector<std::byte*> out;
      for (int rank = 0; rank < size; ++rank) pieces.push_back(piece(group.rank(), rank));
      for (const auto& one : pieces) in.push_back(bytes_of(one));
      for (auto& one : received) out.push_back(bytes_of(one));

      or_throw(group.all_to_all(sources_of(pieces), targets_of(received)));
      for (int rank = 0; rank < size; ++rank)
        EXPECT_EQ(received[static_cast<std::size_t>(rank)], piece(rank, group.rank()));
      or_throw(group.scatter(in, out[0], count * sizeof(float), size - 1));
      EXPECT_EQ(received[0], piece(size - 1, group.rank()));
    }
  });
}

TEST_P(ShmGroupTest, AllToAllTakesPiecesOfAnySize) {
  const int size = GetParam();
  // How many numbers rank `from` has for rank `to`: none, few, and many steps full.
  const auto count_of = [](int from, int to) {
    return static_cast<std::size_t>(from * 3'000 + to * 7) * static_cast<std::size_t>(to != from);
  };
  Ranks(size).run([&](ShmGroup& group) {
    std::vector<std::vector<float>> pieces;
    std::vector<std::vector<float>> received;
    for (int rank = 0; rank < size; ++rank) {
      pieces.push_back(input_of(group.rank(), count_of(group.rank(), rank), 1));
      received.emplace_back(count_of(rank, group.rank()));
    }

    or_throw(group.all_to_all(sources_of(pieces), targets_of(received)));

    for (int rank = 0; rank < size; ++rank)
      EXPECT_EQ(received[static_cast<std::size_t>(rank)],
                input_of(rank, count_of(rank, group.rank()), 1));
  });
}

// What is written for a step must stay until all have read it, however the ranks are late.
TEST_P(ShmGroupTest, AnyOrderOfCollectivesWithLateRanksIsRight) {
  const int size = GetParam();
  const unsigned seed = static_cast<unsigned>(test::test_seed());
  SCOPED_TRACE("seed " + std::to_string(seed));
  Ranks(size, 1).run([&](ShmGroup& group) {
    std::mt19937 plan(seed);  // the same on all ranks
    std::mt19937 own(seed + 1 + static_cast<unsigned>(group.rank()));
    for (unsigned round = 0; round < 300; ++round) {
      const std::size_t count = plan() % 2'100;
      const int root = static_cast<int>(plan() % static_cast<unsigned>(size));
      auto values = input_of(group.rank(), count, round);
      if (own() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 300));
      switch (plan() % 3) {
        case 0:
          or_throw(group.all_reduce(
              bytes_of(values), bytes_of(values), count, DataType::kFloat32, ReduceOp::kSum));
          ASSERT_EQ(values, sum_of(size, count, round)) << round;
          break;
        case 1:
          or_throw(group.broadcast(bytes_of(values), count * sizeof(float), root));
          ASSERT_EQ(values, input_of(root, count, round)) << round;
          break;
        default:
          or_throw(group.barrier());
      }
    }
  });
}

// ---- messages ----

// More than a ring holds: nobody could receive while it waits for its sends alone.
TEST_P(ShmGroupTest, AllSendToAllBeforeAnybodyReceives) {
  const int size = GetParam();
  Ranks(size, 1).run([&](ShmGroup& group) {
    for (const std::size_t count : {0, 1, 5'003, 60'000}) {
      std::vector<std::vector<float>> received(static_cast<std::size_t>(size),
                                               std::vector<float>(count));
      auto own = input_of(group.rank(), count);
      std::vector<TransferPtr> transfers;
      for (int rank = 0; rank < size; ++rank)
        if (rank != group.rank()) transfers.push_back(letter_to(rank, own));
      for (int rank = 0; rank < size; ++rank)
        if (rank != group.rank())
          transfers.push_back(letter_from(rank, received[static_cast<std::size_t>(rank)]));
      for (const auto& transfer : transfers) or_throw(group.post(transfer));

      for (const auto& transfer : transfers) or_throw(group.wait(transfer));

      for (int rank = 0; rank < size; ++rank) {
        if (rank == group.rank()) continue;
        EXPECT_EQ(received[static_cast<std::size_t>(rank)], input_of(rank, count));
      }
    }
  });
}

TEST(ShmMail, TagsAreReceivedInAnyOrderAndOneTagInItsOwn) {
  Ranks(2).run([&](ShmGroup& group) {
    const std::vector<int> sent_tags = {1, 2, 2, 3, 1};
    const std::vector<std::pair<int, unsigned>> received = {{3, 3}, {2, 1}, {1, 0}, {2, 2}, {1, 4}};
    constexpr std::size_t kCount = 30'000;  // a ring does not hold one
    if (group.rank() == 0) {
      std::vector<std::vector<float>> values;
      std::vector<TransferPtr> transfers;
      for (unsigned i = 0; i < sent_tags.size(); ++i) values.push_back(input_of(0, kCount, i));
      for (unsigned i = 0; i < sent_tags.size(); ++i)
        or_throw(group.post(transfers.emplace_back(letter_to(1, values[i], sent_tags[i]))));
      for (const auto& transfer : transfers) or_throw(group.wait(transfer));
      return;
    }
    for (const auto& [tag, number] : received) {
      std::vector<float> values(kCount);
      const auto transfer = letter_from(0, values, tag);
      or_throw(group.post(transfer));
      or_throw(group.wait(transfer));
      EXPECT_EQ(values, input_of(0, kCount, number)) << "tag " << tag;
    }
  });
}

TEST(ShmMail, AMessageFromAnybodySaysWhoSentIt) {
  Ranks(4).run([&](ShmGroup& group) {
    if (group.rank() != 0) {
      auto own = input_of(group.rank(), 100);
      const auto transfer = letter_to(0, own);
      or_throw(group.post(transfer));
      return or_throw(group.wait(transfer));
    }
    std::vector<int> senders;
    for (int i = 0; i < 3; ++i) {
      std::vector<float> values(100);
      const auto transfer = letter_from(kAnyRank, values);
      or_throw(group.post(transfer));
      or_throw(group.wait(transfer));
      EXPECT_EQ(values, input_of(transfer->peer, 100));
      senders.push_back(transfer->peer);
    }
    EXPECT_THAT(senders, ::testing::UnorderedElementsAre(1, 2, 3));
  });
}

TEST(ShmMail, LettersMoveWhileTheirRankWaitsInACollective) {
  Ranks(2, 1).run([&](ShmGroup& group) {
    auto values = input_of(0, 100'000);
    if (group.rank() == 0) {
      const auto transfer = letter_to(1, values);
      or_throw(group.post(transfer));
      or_throw(group.barrier());
      EXPECT_TRUE(transfer->is_done);
      return;
    }
    std::vector<float> received(values.size());
    const auto transfer = letter_from(0, received);
    or_throw(group.post(transfer));
    or_throw(group.wait(transfer));
    or_throw(group.barrier());
    EXPECT_EQ(received, values);
  });
}

TEST(ShmMail, WhatARankLeftBehindArrivesAndThenItIsLost) {
  const Ranks ranks(2);
  std::jthread other([&] {
    const auto group = ranks.join(1);
    auto own = input_of(1, 100);
    const auto transfer = letter_to(0, own);
    or_throw(group->post(transfer));
    or_throw(group->wait(transfer));
  });
  const auto group = ranks.join(0);
  other.join();
  std::vector<float> values(100);
  const auto first = letter_from(1, values);
  or_throw(group->post(first));
  EXPECT_TRUE(group->wait(first));
  EXPECT_EQ(values, input_of(1, 100));
  const auto second = letter_from(kAnyRank, values);
  or_throw(group->post(second));
  const auto done = group->wait(second);
  ASSERT_FALSE(done);
  EXPECT_THAT(done.error().message(), HasSubstr("rank 1"));
  EXPECT_THAT(done.error().message(), HasSubstr("has left the group"));
}

TEST(ShmMail, MessagesThatNobodyReceivesAreKeptUpToALimit) {
  const Ranks ranks(2, 1);
  std::jthread other([&] {
    const auto group = ranks.join(1);
    std::vector<std::vector<float>> values(5, std::vector<float>(1'000));
    std::vector<TransferPtr> transfers;
    for (int i = 0; i < 5; ++i)
      or_throw(group->post(
          transfers.emplace_back(letter_to(0, values[static_cast<std::size_t>(i)], i))));
    for (const auto& transfer : transfers) (void)group->wait(transfer);
  });
  GroupOptions options = ranks.options(0);
  options.most_aside = 2 * (4'000 + kAsideOverhead);
  const auto group = or_throw(ShmGroup::join(ranks.memory(), options));
  std::vector<float> values(1'000);
  const auto receive = [&](int tag) {
    const auto transfer = letter_from(1, values, tag);
    if (auto posted = group->post(transfer); !posted) return posted;
    return group->wait(transfer);
  };

  EXPECT_TRUE(receive(2)) << "two are put aside";
  EXPECT_TRUE(receive(0)) << "one of them is taken";
  const auto done = receive(7);

  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code(), ErrorCode::kOutOfMemory);
  EXPECT_THAT(done.error().message(),
              HasSubstr("rank 0 cannot keep a message of 4000 bytes with tag 4 from rank 1"));
  EXPECT_THAT(done.error().message(), HasSubstr("8512 of 8512 bytes are taken"));
}

TEST(ShmMail, AMessageOfAnotherSizeIsNamedWithBothSizes) {
  Ranks(2).run([&](ShmGroup& group) {
    std::vector<float> values(group.rank() == 0 ? 3 : 4);
    const auto transfer = group.rank() == 0 ? letter_from(1, values, 7) : letter_to(0, values, 7);
    Result<void> done = group.post(transfer);
    if (done) done = group.wait(transfer);
    if (group.rank() != 0) return;
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().message(), "rank 0 receives 12 bytes with tag 7, and rank 1 sends 16");
  });
}

TEST(ShmMail, ARankHasNoMessagesWithItselfOrNobody) {
  Ranks(2).run([&](ShmGroup& group) {
    std::vector<float> values(3);
    EXPECT_FALSE(group.post(letter_to(group.rank(), values)));
    EXPECT_FALSE(group.post(letter_to(2, values)));
    EXPECT_FALSE(group.post(letter_to(kAnyRank, values)));
    EXPECT_TRUE(group.barrier());
  });
}

INSTANTIATE_TEST_SUITE_P(OfRanks, ShmGroupTest, ::testing::Values(1, 2, 3, 4, 5));

// ---- what goes wrong ----

TEST(ShmGroupErrors, ARankThatCallsSomethingElseIsNamedWithBothCalls) {
  std::string said;
  Ranks(2).run([&](ShmGroup& group) {
    std::vector<float> values(10);
    const auto done =
        group.rank() == 0
            ? group.all_reduce(
                  bytes_of(values), bytes_of(values), 10, DataType::kFloat32, ReduceOp::kSum)
            : group.all_reduce(
                  bytes_of(values), bytes_of(values), 9, DataType::kFloat32, ReduceOp::kMax);
    ASSERT_FALSE(done);
    if (group.rank() == 0 && done.error().code() == ErrorCode::kShapeMismatch)
      said = done.error().message();
    // Either sees the other's call, or that the other has met an error.
    EXPECT_TRUE(done.error().code() == ErrorCode::kShapeMismatch ||
                done.error().code() == ErrorCode::kPeerLost);
    EXPECT_FALSE(group.barrier()) << "a group that has met an error is used on";
  });
  if (!said.empty()) {
    EXPECT_EQ(said,
              "rank 0 calls all_reduce of 40 bytes, sum of float32, and rank 1 all_reduce of 36 "
              "bytes, max of float32");
  }
}

TEST(ShmGroupErrors, ARankThatLeavesIsNamed) {
  Ranks(3).run([&](ShmGroup& group) {
    if (group.rank() == 1) return;
    const auto done = group.barrier();
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code(), ErrorCode::kPeerLost);
    // The others may see each other's error first.
    EXPECT_THAT(done.error().message(),
                ::testing::AnyOf(HasSubstr("rank 1"), HasSubstr("has met an error")));
  });
}

TEST(ShmGroupErrors, ARankThatIsLateForLongerThanTheTimeoutIsNamed) {
  const Ranks ranks(2);
  std::latch has_ended(1);
  std::jthread late([&] {
    const auto group = ranks.join(1);
    has_ended.wait();
  });
  GroupOptions options = ranks.options(0);
  options.timeout = 50ms;
  const auto group = or_throw(ShmGroup::join(ranks.memory(), options));
  const auto done = group->barrier();
  has_ended.count_down();
  ASSERT_FALSE(done);
  EXPECT_THAT(done.error().message(), HasSubstr("rank 1"));
  EXPECT_THAT(done.error().message(), HasSubstr("within the timeout"));
}

TEST(ShmGroupErrors, AbortEndsAWaitOfAnotherThreadAndTellsTheOthers) {
  const Ranks ranks(2);
  std::latch has_ended(1);
  std::jthread other([&] {
    const auto group = ranks.join(1);
    std::jthread helper([&] { group->abort(); });
    EXPECT_FALSE(group->barrier()) << "the other rank is not there yet";
    helper.join();
    has_ended.count_down();
    EXPECT_FALSE(group->barrier());
  });
  const auto group = ranks.join(0);
  has_ended.wait();
  Result<void> done;
  for (int i = 0; i < 2 && done; ++i)
    done = group->barrier();  // the other may have come to the first
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code(), ErrorCode::kPeerLost);
  EXPECT_THAT(done.error().message(), HasSubstr("rank 1"));
}

TEST(ShmGroupErrors, RanksThatDoNotJoinAreNamed) {
  const Ranks ranks(3);
  GroupOptions options = ranks.options(1);
  options.join_timeout = 20ms;
  const auto group = ShmGroup::join(ranks.memory(), options);
  ASSERT_FALSE(group);
  EXPECT_EQ(group.error().code(), ErrorCode::kPeerLost);
  EXPECT_THAT(group.error().message(), HasSubstr("within 20 ms: 0, 2"));
}

TEST(ShmGroupErrors, ARankThatJoinsTwiceIsRefused) {
  const Ranks ranks(1);
  const auto first = ranks.join(0);
  const auto second = ShmGroup::join(ranks.memory(), ranks.options(0));
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message(), HasSubstr("rank 0 has joined this group already"));
  EXPECT_TRUE(first->barrier());
}

TEST(ShmGroupErrors, MemoryOfAnotherShapeIsRefused) {
  const Ranks ranks(2);
  GroupOptions options = ranks.options(0);
  options.shape.world_size = 3;
  const auto group = ShmGroup::join(ranks.memory(), options);
  ASSERT_FALSE(group);
  EXPECT_EQ(group.error().code(), ErrorCode::kInvalidArgument);
  options.shape = {.world_size = 2, .slot_bytes = 100};
  EXPECT_FALSE(ShmGroup::join(ranks.memory(), options));
}

TEST(ShmGroupErrors, WhatIsNotDefinedIsRefusedAndTheGroupGoesOn) {
  Ranks(2).run([](ShmGroup& group) {
    std::vector<float> values(4);
    const auto done = group.all_reduce(
        bytes_of(values), bytes_of(values), 4, DataType::kFloat32, ReduceOp::kBitXor);
    ASSERT_FALSE(done);
    EXPECT_THAT(done.error().message(), HasSubstr("bitwise xor is not defined for float32"));
    EXPECT_FALSE(group.broadcast(bytes_of(values), 16, 2));
    EXPECT_TRUE(group.barrier());
  });
}

}  // namespace
}  // namespace accel::shm::shm_group_test
