// One rank's elements of a dataset that can only be read in order.

#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>
#include <accel/iterable_shard.h>

namespace accel::iterable_shard_test {
namespace {

std::vector<int> range(int size) {
  std::vector<int> numbers;
  for (int i = 0; i < size; ++i) numbers.push_back(i);
  return numbers;
}

std::vector<int> shard_of(std::vector<int> numbers, IterableShardOptions options) {
  IterableDatasetShard<std::vector<int>> shard(std::move(numbers), options);
  std::vector<int> seen;
  shard.for_each([&](int number) { seen.push_back(number); });
  EXPECT_EQ(static_cast<std::int64_t>(seen.size()), shard.size());
  return seen;
}

using Numbers = std::vector<int>;

TEST(IterableDatasetShard, GivesEachRankItsSliceOfAGroup) {
  EXPECT_EQ(shard_of(range(8), {.batch_size = 2, .num_processes = 2, .process_index = 0}),
            (Numbers{0, 1, 4, 5}));
  EXPECT_EQ(shard_of(range(8), {.batch_size = 2, .num_processes = 2, .process_index = 1}),
            (Numbers{2, 3, 6, 7}));
}

TEST(IterableDatasetShard, SplitsABatchBetweenTheRanks) {
  const IterableShardOptions options{
      .batch_size = 4, .num_processes = 2, .process_index = 1, .split_batches = true};
  EXPECT_EQ(shard_of(range(8), options), (Numbers{2, 3, 6, 7}));
}

TEST(IterableDatasetShard, CompletesTheLastGroupFromTheFirst) {
  EXPECT_EQ(shard_of(range(9), {.batch_size = 2, .num_processes = 2, .process_index = 0}),
            (Numbers{0, 1, 4, 5, 8, 0}));
  EXPECT_EQ(shard_of(range(9), {.batch_size = 2, .num_processes = 2, .process_index = 1}),
            (Numbers{2, 3, 6, 7, 1, 2}));
}

TEST(IterableDatasetShard, RepeatsATinyDatasetUntilTheGroupIsFull) {
  EXPECT_EQ(shard_of(range(1), {.batch_size = 2, .num_processes = 2, .process_index = 1}),
            (Numbers{0, 0}));
}

TEST(IterableDatasetShard, DropsTheLastGroupWithDropLast) {
  EXPECT_EQ(shard_of(range(9),
                     {.batch_size = 2, .drop_last = true, .num_processes = 2, .process_index = 0}),
            (Numbers{0, 1, 4, 5}));
}

TEST(IterableDatasetShard, RefusesABatchSizeThatDoesNotDivide) {
  EXPECT_THROW(shard_of(range(9), {.batch_size = 3, .num_processes = 2, .split_batches = true}),
               Error);
}

// A dataset whose generator decides what it yields.
struct RandomNumbers {
  at::Generator random = at::detail::createCPUGenerator(77);
  Numbers drawn;
  [[nodiscard]] at::Generator generator() const { return random; }
  Numbers::iterator begin() {
    drawn = {static_cast<int>(random.current_seed())};
    return drawn.begin();
  }
  Numbers::iterator end() { return drawn.end(); }
};

TEST(IterableDatasetShard, SeedsTheDatasetsGeneratorWithTheEpoch) {
  IterableDatasetShard<RandomNumbers> shard(RandomNumbers{}, {});
  Numbers seen;

  shard.set_epoch(3);
  shard.for_each([&](int number) { seen.push_back(number); });

  EXPECT_EQ(seen, Numbers{3});
}

}  // namespace
}  // namespace accel::iterable_shard_test
