// Groups of more ranks than a byte's bits, a word's and a signed byte holds: each collective once, with what is smaller than a
// slot and what takes several steps. Sums are of whole numbers, so that no order of theirs has other bits.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "libaccel/engine/shm/group/shm_group.h"
#include "tests/support/shm_ranks.h"

namespace accel::shm::shm_many_ranks_test {
namespace {

using test::bytes_of;
using test::sources_of;
using test::targets_of;

constexpr std::size_t kSlot = 16 * 1024;  // a cache line for each of 256 ranks
constexpr std::size_t kSizes[] = {1, 100, 5'003};

class ShmManyRanks : public ::testing::TestWithParam<int> {
 protected:
  // As threads of one process the ranks have a descriptor of each other: 16,900 of 130, and of 256, which is the most, 65,536.
  void SetUp() override {
    rlimit limit{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    const auto wanted = static_cast<rlim_t>(size() * size() + 100);
    limit.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, wanted));
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_cur < wanted) GTEST_SKIP() << "the limit of open files is below " << wanted;
  }
  [[nodiscard]] int size() const { return GetParam(); }
  void run(const std::function<void(ShmGroup&)>& body) const {
    test::ShmRanks(size(), /*spins=*/1, kSlot).run(body);
  }
  // What rank `rank` has for rank `to`.
  static std::vector<float> piece(int rank, int to, std::size_t count) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i)
      values[i] = static_cast<float>(rank * 7 + to * 3 + static_cast<int>(i % 11));
    return values;
  }
  [[nodiscard]] std::vector<float> sum_for(int to, std::size_t count) const {
    std::vector<float> sum(count);
    for (int rank = 0; rank < size(); ++rank) {
      const auto part = piece(rank, to, count);
      for (std::size_t i = 0; i < count; ++i) sum[i] += part[i];
    }
    return sum;
  }
};

TEST_P(ShmManyRanks, SumToTheSame) {
  run([&](ShmGroup& group) {
    for (const std::size_t count : kSizes) {
      auto values = piece(group.rank(), 0, count);
      or_throw(group.all_reduce(
          bytes_of(values), bytes_of(values), count, DataType::kFloat32, ReduceOp::kSum));
      EXPECT_EQ(values, sum_for(0, count)) << "rank " << group.rank() << ", " << count;
    }
  });
}

TEST_P(ShmManyRanks, GetTheirPartOfASum) {
  run([&](ShmGroup& group) {
    std::vector<std::vector<float>> pieces;
    std::vector<const std::byte*> in;
    for (int to = 0; to < size(); ++to) pieces.push_back(piece(group.rank(), to, 100));
    for (const auto& one : pieces) in.push_back(bytes_of(one));
    std::vector<float> out(100);
    or_throw(group.reduce_scatter(in, bytes_of(out), 100, DataType::kFloat32, ReduceOp::kSum));
    EXPECT_EQ(out, sum_for(group.rank(), 100)) << "rank " << group.rank();
  });
}

TEST_P(ShmManyRanks, GetWhatTheLastOneSends) {
  run([&](ShmGroup& group) {
    for (const std::size_t count : kSizes) {
      auto values = piece(group.rank(), 0, count);
      or_throw(group.broadcast(bytes_of(values), count * sizeof(float), size() - 1));
      EXPECT_EQ(values, piece(size() - 1, 0, count)) << "rank " << group.rank();
    }
  });
}

TEST_P(ShmManyRanks, GatherWhatAllHave) {
  run([&](ShmGroup& group) {
    const auto in = piece(group.rank(), 0, 100);
    std::vector<std::vector<float>> gathered(static_cast<std::size_t>(size()),
                                             std::vector<float>(100));
    std::vector<std::byte*> out;
    for (auto& part : gathered) out.push_back(bytes_of(part));
    or_throw(group.all_gather(bytes_of(in), out, 100 * sizeof(float)));
    for (int rank = 0; rank < size(); ++rank)
      EXPECT_EQ(gathered[static_cast<std::size_t>(rank)], piece(rank, 0, 100)) << rank;
  });
}

TEST_P(ShmManyRanks, SendEachOtherAPiece) {
  run([&](ShmGroup& group) {
    std::vector<std::vector<float>> pieces;
    std::vector<std::vector<float>> received(static_cast<std::size_t>(size()),
                                             std::vector<float>(10));
    for (int to = 0; to < size(); ++to) pieces.push_back(piece(group.rank(), to, 10));
    or_throw(group.all_to_all(sources_of(pieces), targets_of(received)));
    for (int from = 0; from < size(); ++from)
      EXPECT_EQ(received[static_cast<std::size_t>(from)], piece(from, group.rank(), 10)) << from;
  });
}

TEST_P(ShmManyRanks, PassMessagesAroundARing) {
  run([&](ShmGroup& group) {
    auto own = piece(group.rank(), 0, 100);
    std::vector<float> received(100);
    const int before = (group.rank() + size() - 1) % size();
    const auto sent = test::letter_to((group.rank() + 1) % size(), own);
    const auto got = test::letter_from(before, received);
    or_throw(group.post(sent));
    or_throw(group.post(got));
    or_throw(group.wait(got));
    or_throw(group.wait(sent));
    EXPECT_EQ(received, piece(before, 0, 100));
  });
}

INSTANTIATE_TEST_SUITE_P(OfRanks, ShmManyRanks, ::testing::Values(9, 65, 130));

}  // namespace
}  // namespace accel::shm::shm_many_ranks_test
