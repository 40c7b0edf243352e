// The ranks of a node as threads, each with a cache of its own over one memory.

#include "libaccel/engine/remote/shard_cache.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <accel/error.h>

namespace accel::sharding::shard_cache_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Of what each rank of the world has: the byte of a unit's shard.
std::byte value_of(std::size_t unit, int rank) {
  return static_cast<std::byte>(16 * unit + static_cast<std::size_t>(rank) + 1);
}

class AllAlive : public shm::PeerWatch {
 public:
  bool is_alive(int rank) override { return rank != dead; }
  std::atomic<int> dead = -1;  // the place of a rank in node_ranks
};

// A world of 5 ranks, of which 1 and 3 are on this node. Shards are no multiples of pages.
class ShardCacheTest : public ::testing::Test {
 protected:
  CacheShape shape_of(int rank) {
    return {.world_size = 5, .rank = rank, .node_ranks = {1, 3}, .shard_bytes = {5000, 64, 30000}};
  }

  ShardCacheTest() : memory_(::memfd_create("shard_cache_test", MFD_CLOEXEC)) {
    EXPECT_EQ(::ftruncate(memory_.get(), static_cast<off_t>(ShardCache::memory_bytes(shape_of(1)))),
              0);
  }

  using FetchOne = std::function<void(int rank, std::size_t unit, std::span<std::byte> into)>;

  std::unique_ptr<ShardCache> open(int rank, const FetchOne& fetch_one) {
    return open_with(rank, [fetch_one](std::size_t unit, auto wanted, const auto& arrived) {
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        fetch_one(wanted[i].rank, unit, wanted[i].into);
        arrived(i);
      }
    });
  }
  std::unique_ptr<ShardCache> open_with(int rank, ShardCache::Fetch fetch) {
    auto cache =
        ShardCache::open(shape_of(rank), UniqueFd(::dup(memory_.get())), peers_, std::move(fetch));
    EXPECT_TRUE(cache);
    for (std::size_t unit = 0; unit < 3; ++unit) {
      const auto own = (*cache)->shard(unit, rank);
      std::memset(own.data(), static_cast<int>(value_of(unit, rank)), own.size());
    }
    return *std::move(cache);
  }
  std::unique_ptr<ShardCache> open(int rank) {
    return open(rank, [this](int from, std::size_t unit, std::span<std::byte> into) {
      ++num_fetches_;
      std::memset(into.data(), static_cast<int>(value_of(unit, from)), into.size());
    });
  }

  std::size_t blocks() const {
    struct stat status {};
    EXPECT_EQ(::fstat(memory_.get(), &status), 0);
    return static_cast<std::size_t>(status.st_blocks);
  }

  static void expect_whole(const ShardCache& cache, std::size_t unit) {
    for (int rank = 0; rank < 5; ++rank)
      for (const std::byte value : cache.shard(unit, rank)) ASSERT_EQ(value, value_of(unit, rank));
  }

  UniqueFd memory_;
  AllAlive peers_;
  std::atomic<int> num_fetches_ = 0;
};

TEST_F(ShardCacheTest, FetchesTheShardsOfOtherNodesAndNoOthers) {
  const auto one = open(1);
  const auto three = open(3);
  one->acquire(0);
  expect_whole(*one, 0);
  EXPECT_EQ(num_fetches_, 3);
  one->release(0);
}

TEST_F(ShardCacheTest, FetchesOnceForAllRanksOfTheNode) {
  const auto one = open(1);
  const auto three = open(3);
  one->acquire(2);
  three->acquire(2);
  expect_whole(*three, 2);
  EXPECT_EQ(num_fetches_, 3);
  one->release(2);
  expect_whole(*three, 2);  // still held by rank 3
  three->release(2);
}

// Three shards of others, two ranks of the node.
TEST_F(ShardCacheTest, AsksForARanksPartAtOnce) {
  std::vector<std::vector<int>> asked;
  const auto one = open_with(1, [&](std::size_t, auto wanted, const auto& arrived) {
    asked.emplace_back();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      asked.back().push_back(wanted[i].rank);
      arrived(i);
    }
  });
  one->acquire(0);
  one->release(0);
  EXPECT_THAT(asked, ElementsAre(ElementsAre(0, 2), ElementsAre(4)));
}

TEST_F(ShardCacheTest, GivesTheMemoryBackAfterTheLastReleaseAndKeepsOwnShards) {
  const auto one = open(1);
  const auto three = open(3);
  const std::size_t before = blocks();
  one->acquire(2);
  EXPECT_GT(blocks(), before + 3 * 30000 / 512 - 3 * 8);
  one->release(2);
  EXPECT_LE(blocks(), before + 4 * 8);  // pages that hold parts of two shards stay
  for (const std::byte value : one->shard(2, 3)) ASSERT_EQ(value, value_of(2, 3));
  one->acquire(2);
  expect_whole(*one, 2);
  EXPECT_EQ(num_fetches_, 6);
  one->release(2);
}

TEST_F(ShardCacheTest, SeesNewValuesAfterARelease) {
  std::atomic<int> generation = 1;
  const auto one = open(1, [&](int, std::size_t, std::span<std::byte> into) {
    std::memset(into.data(), generation, into.size());
  });
  one->acquire(1);
  one->release(1);
  generation = 2;
  one->acquire(1);
  EXPECT_EQ(one->shard(1, 0)[0], std::byte{2});
  one->release(1);
}

TEST_F(ShardCacheTest, AFailedFetchIsThrownAndTheNextTryGoesOn) {
  std::atomic<bool> fails = true;
  const auto one = open(1, [&](int from, std::size_t unit, std::span<std::byte> into) {
    if (fails) throw Error(ErrorCode::kPeerLost, "rank " + std::to_string(from) + " is gone");
    std::memset(into.data(), static_cast<int>(value_of(unit, from)), into.size());
  });
  const auto three = open(3);
  EXPECT_THROW(one->acquire(0), Error);
  fails = false;
  one->acquire(0);
  expect_whole(*one, 0);
  one->release(0);
}

TEST_F(ShardCacheTest, NamesTheRankOfTheNodeThatEndedWhileItFetched) {
  std::atomic<bool> is_fetching = false;
  std::atomic<bool> may_end = false;
  const auto three = open(3, [&](int, std::size_t, std::span<std::byte>) {
    is_fetching = true;
    is_fetching.notify_all();
    may_end.wait(false);
  });
  const auto one = open(1);
  std::jthread stuck([&] { three->acquire(0); });
  is_fetching.wait(false);
  peers_.dead = 1;  // rank 3
  try {
    one->acquire(0);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
    EXPECT_THAT(error.message(), HasSubstr("rank 3 ended"));
  }
  may_end = true;
  may_end.notify_all();
}

TEST_F(ShardCacheTest, RanksThatComeAndGoAtWillAlwaysSeeWholeUnits) {
  const auto one = open(1);
  const auto three = open(3);
  const auto come_and_go = [](ShardCache& cache, std::size_t seed) {
    for (std::size_t round = 0; round < 600; ++round) {
      const std::size_t unit = (round * seed) % 3;
      cache.acquire(unit);
      expect_whole(cache, unit);
      cache.release(unit);
    }
  };
  {
    std::jthread other([&] { come_and_go(*three, 2); });
    come_and_go(*one, 1);
  }
  EXPECT_GE(num_fetches_, 9);
}

TEST_F(ShardCacheTest, ANodeThatHasAllRanksFetchesNothing) {
  CacheShape shape{.world_size = 1, .rank = 0, .node_ranks = {0}, .shard_bytes = {100}};
  UniqueFd memory(::memfd_create("shard_cache_test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(memory.get(), static_cast<off_t>(ShardCache::memory_bytes(shape))), 0);
  auto cache = ShardCache::open(shape, std::move(memory), peers_, nullptr);
  ASSERT_TRUE(cache);
  (*cache)->acquire(0);
  (*cache)->release(0);
}

}  // namespace
}  // namespace accel::sharding::shard_cache_test
