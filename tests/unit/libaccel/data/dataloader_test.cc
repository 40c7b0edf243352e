// DataLoader in one process: batches, positions, workers, and the shards of several ranks by hand.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/data/example.h>

#include <accel/dataloader.h>
#include <accel/error.h>
#include <accel/state.h>

#include "tests/support/numbers.h"

namespace accel::dataloader_test {
namespace {

using test::first_batches;
using test::generator_with;
using test::Numbers;
using test::numbers_of;
using test::pass_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Batches = test::NumberBatches;

TEST(DataLoader, YieldsBatchesInOrder) {
  DataLoader loader(Numbers{7}, {.batch_size = 3});

  EXPECT_EQ(pass_of(loader), (Batches{{0, 1, 2}, {3, 4, 5}, {6}}));
  EXPECT_EQ(loader.size(), 3);
}

TEST(DataLoader, DropsTheLastBatchOnRequest) {
  DataLoader loader(Numbers{7}, {.batch_size = 3, .drop_last = true});

  EXPECT_EQ(pass_of(loader), (Batches{{0, 1, 2}, {3, 4, 5}}));
  EXPECT_EQ(loader.size(), 2);
}

TEST(DataLoader, ShufflesEachEpochAnew) {
  DataLoader loader(Numbers{50},
                    {.batch_size = 50, .shuffle = true, .generator = generator_with(3)});

  const Batches first = pass_of(loader);
  const Batches second = pass_of(loader);

  EXPECT_NE(first, second);
  DataLoader again(Numbers{50},
                   {.batch_size = 50, .shuffle = true, .generator = generator_with(3)});
  EXPECT_EQ(pass_of(again), first);
}

TEST(DataLoader, CollatesNestedElements) {
  struct Rows {
    using Element = std::tuple<at::Tensor,
                               std::pair<float, bool>,
                               std::map<std::string, std::int64_t>,
                               std::vector<double>,
                               std::string>;
    Element get(std::size_t i) const {
      const auto n = static_cast<std::int64_t>(i);
      return {at::full({2}, n, at::kLong),
              {0.5F * static_cast<float>(n), n == 1},
              {{"id", n}},
              {1.0, static_cast<double>(n)},
              std::to_string(n)};
    }
    std::size_t size() const { return 2; }
  };
  DataLoader loader(Rows{}, {.batch_size = 2});

  for (auto& [rows, pair, map, list, names] : loader) {
    EXPECT_EQ(numbers_of(rows), (std::vector<std::int64_t>{0, 0, 1, 1}));
    EXPECT_TRUE(pair.first.equal(at::tensor({0.0F, 0.5F})));
    EXPECT_EQ(pair.second.scalar_type(), at::kBool);
    EXPECT_EQ(numbers_of(map.at("id")), (std::vector<std::int64_t>{0, 1}));
    ASSERT_EQ(list.size(), 2U);
    EXPECT_TRUE(list[1].equal(at::tensor({0.0, 1.0})));
    EXPECT_THAT(names, ElementsAre("0", "1"));
  }
}

struct Sample {
  at::Tensor image, label;
  static constexpr auto fields() { return std::make_tuple(&Sample::image, &Sample::label); }
};

TEST(DataLoader, CollatesStructsWithFields) {
  struct Samples {
    Sample get(std::size_t i) const {
      return {at::full({3}, static_cast<float>(i)),
              at::full({}, static_cast<std::int64_t>(i), at::kLong)};
    }
    std::size_t size() const { return 4; }
  };
  DataLoader loader(Samples{}, {.batch_size = 4});

  for (Sample& batch : loader) {
    EXPECT_EQ(batch.image.sizes(), (at::IntArrayRef{4, 3}));
    EXPECT_EQ(numbers_of(batch.label), (std::vector<std::int64_t>{0, 1, 2, 3}));
  }
}

TEST(DataLoader, CollatesTorchExamples) {
  struct Examples {
    torch::data::Example<> get(std::size_t i) {
      return {at::full({2}, static_cast<float>(i)), at::full({}, static_cast<float>(i))};
    }
    std::optional<std::size_t> size() const { return 3; }
  };
  DataLoader loader(Examples{}, {.batch_size = 2});

  std::vector<std::int64_t> rows;
  for (auto& batch : loader) rows.push_back(batch.data.size(0) + batch.target.size(0));

  EXPECT_THAT(rows, ElementsAre(4, 2));
}

TEST(DataLoader, TakesACollateFunction) {
  DataLoader loader(Numbers{5}, {.batch_size = 2}, [](const std::vector<std::int64_t>& numbers) {
    return std::to_string(numbers.size()) + " from " + std::to_string(numbers.front());
  });

  std::vector<std::string> batches;
  for (const std::string& batch : loader) batches.push_back(batch);

  EXPECT_THAT(batches, ElementsAre("2 from 0", "2 from 2", "1 from 4"));
}

TEST(DataLoader, NamesTheElementThatHasAnotherShape) {
  struct Ragged {
    at::Tensor get(std::size_t i) const { return at::arange(i < 2 ? 3 : 4); }
    std::size_t size() const { return 3; }
  };
  DataLoader loader(Ragged{}, {.batch_size = 3});

  try {
    (void)loader.begin();
    FAIL() << "shapes that differ were stacked";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kShapeMismatch);
    EXPECT_THAT(error.message(), HasSubstr("element 2 of a batch has shape [4]"));
  }
}

TEST(DataLoader, RefusesOptionsThatExcludeEachOther) {
  const auto sampler = std::make_shared<SequentialSampler>(3);
  const auto batches = std::make_shared<BatchSampler>(sampler, 2);

  EXPECT_THROW(DataLoader(Numbers{3}, {.batch_size = 0}), Error);
  EXPECT_THROW(DataLoader(Numbers{3}, {.shuffle = true, .sampler = sampler}), Error);
  EXPECT_THROW(DataLoader(Numbers{3}, {.batch_size = 2, .batch_sampler = batches}), Error);
  EXPECT_THROW(DataLoader(Numbers{3}, {.num_workers = -1}), Error);
  EXPECT_THROW(DataLoader(std::vector<std::int64_t>{1, 2}, {.shuffle = true}), Error);
}

// --- workers ---

TEST(DataLoaderWorkers, KeepTheOrder) {
  DataLoader loader(Numbers{101}, {.batch_size = 2, .num_workers = 4});
  DataLoader without(Numbers{101}, {.batch_size = 2});

  EXPECT_EQ(pass_of(loader), pass_of(without));
  EXPECT_EQ(pass_of(loader), pass_of(without));
}

TEST(DataLoaderWorkers, ReadNoFurtherAheadThanAsked) {
  Numbers numbers{1000};
  {
    DataLoader loader(numbers, {.batch_size = 1, .num_workers = 2, .prefetch_factor = 3});
    (void)first_batches(loader, 1);
  }

  // Yielded, read one ahead by the pass, and at most 6 in the slots.
  EXPECT_LE(*numbers.reads, 8);
}

class ADataLoaderWithWorkers : public ::testing::TestWithParam<int> {};

TEST_P(ADataLoaderWithWorkers, HandsTheErrorOutAtItsBatch) {
  struct Broken {
    std::int64_t get(std::size_t i) const {
      if (i == 5) throw std::runtime_error("element 5 is unreadable");
      return static_cast<std::int64_t>(i);
    }
    std::size_t size() const { return 10; }
  };
  DataLoader loader(Broken{}, {.batch_size = 1, .num_workers = GetParam()});

  std::vector<std::int64_t> seen;
  bool ended = false;
  try {
    for (const at::Tensor& batch : loader) {
      seen.push_back(batch.item<std::int64_t>());
      ended = ended || GradientState().end_of_dataloader();
    }
    FAIL() << "the error was lost";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "element 5 is unreadable");
  }
  EXPECT_THAT(seen, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_FALSE(ended) << "the pass did not come to its end";
  EXPECT_EQ(loader.epoch(), 0);
  EXPECT_FALSE(GradientState().in_dataloader());
}

INSTANTIATE_TEST_SUITE_P(Workers, ADataLoaderWithWorkers, ::testing::Values(0, 3));

TEST(DataLoaderWorkers, ReadAnIterableAhead) {
  std::vector<std::int64_t> numbers(23);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::int64_t>(i);
  DataLoader loader(numbers, {.batch_size = 5, .num_workers = 2});
  DataLoader without(numbers, {.batch_size = 5});

  EXPECT_EQ(pass_of(loader), pass_of(without));
  EXPECT_EQ(pass_of(loader).back(), (std::vector<std::int64_t>{20, 21, 22}));
  EXPECT_EQ(loader.size(), 5);
}

// --- the active loader ---

TEST(ActiveDataLoader, KnowsTheLastBatchWhileItIsYielded) {
  DataLoader loader(Numbers{16}, {.batch_size = 4});
  const GradientState state;

  std::vector<bool> ends;
  for (const at::Tensor& batch : loader) {
    (void)batch;
    ends.push_back(state.end_of_dataloader());
  }

  EXPECT_THAT(ends, ElementsAre(false, false, false, true));
  EXPECT_EQ(state.active_dataloader(), nullptr);
}

TEST(ActiveDataLoader, IsTheInnermostOne) {
  DataLoader outer(Numbers{2}, {.batch_size = 1});
  DataLoader inner(Numbers{2}, {.batch_size = 1});
  const GradientState state;

  std::vector<bool> outer_ends;
  for (const at::Tensor& batch : outer) {
    (void)batch;
    for (const at::Tensor& nested : inner) {
      (void)nested;
      EXPECT_EQ(state.active_dataloader(), inner.ptr().get());
    }
    EXPECT_EQ(state.active_dataloader(), outer.ptr().get());
    outer_ends.push_back(state.end_of_dataloader());
  }

  EXPECT_THAT(outer_ends, ElementsAre(false, true));
  EXPECT_FALSE(state.in_dataloader());
}

TEST(ActiveDataLoader, IsGivenUpWhenTheLoopIsLeft) {
  DataLoader loader(Numbers{8}, {.batch_size = 1});

  (void)first_batches(loader, 2);

  EXPECT_FALSE(GradientState().in_dataloader());
  EXPECT_EQ(loader.epoch(), 0);
}

TEST(ActiveDataLoader, KnowsTheRemainderOfTheDataset) {
  DataLoader loader(Numbers{22}, {.batch_size = 4});
  DataLoader dropping(Numbers{22}, {.batch_size = 4, .drop_last = true});
  const auto shard = prepare_data_loader(loader, {.num_processes = 2, .process_index = 1});

  (void)first_batches(loader, 1);
  (void)first_batches(dropping, 1);
  (void)first_batches(shard, 1);

  EXPECT_EQ(loader->remainder(), 2);
  EXPECT_EQ(dropping->remainder(), -1);
  EXPECT_EQ(shard->remainder(), 6);
  EXPECT_EQ(shard.total_batch_size(), 8);
  EXPECT_EQ(shard.total_dataset_length(), 22);
}

TEST(RowsToKeep, AreThoseBelowTheRemainderAtTheEnd) {
  EXPECT_EQ(rows_to_keep(true, 6), 6);
  EXPECT_EQ(rows_to_keep(false, 6), std::nullopt);
  EXPECT_EQ(rows_to_keep(true, 0), std::nullopt);
  EXPECT_EQ(rows_to_keep(true, -1), std::nullopt);
}

TEST(RowsToKeep, MakeEveryElementAppearOnce) {
  std::vector<Batches> of_rank;
  DataLoader loader(Numbers{22}, {.batch_size = 4});
  std::int64_t remainder = 0;
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    const auto shard = prepare_data_loader(loader, {.num_processes = 2, .process_index = rank});
    of_rank.push_back(pass_of(shard));
    remainder = shard->remainder();
  }

  std::vector<std::int64_t> gathered;
  for (size_t round = 0; round < of_rank[0].size(); ++round) {
    std::vector<std::int64_t> rows = of_rank[0][round];
    rows.insert(rows.end(), of_rank[1][round].begin(), of_rank[1][round].end());
    const auto keep = rows_to_keep(round + 1 == of_rank[0].size(), remainder);
    if (keep) rows.resize(static_cast<size_t>(*keep));
    gathered.insert(gathered.end(), rows.begin(), rows.end());
  }

  std::vector<std::int64_t> all(22);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
  EXPECT_EQ(gathered, all);
}

// --- shards ---

TEST(PreparedDataLoader, YieldsTheBatchesOfItsRank) {
  DataLoader loader(Numbers{22}, {.batch_size = 3});

  EXPECT_EQ(pass_of(prepare_data_loader(loader, {.num_processes = 2, .process_index = 1})),
            (Batches{{3, 4, 5}, {9, 10, 11}, {15, 16, 17}, {21, 0, 1}}));
}

TEST(PreparedDataLoader, IsNotPreparedTwice) {
  DataLoader loader(Numbers{22}, {.batch_size = 3});
  const auto once = prepare_data_loader(loader, {.num_processes = 2, .process_index = 1});

  const auto twice = prepare_data_loader(once, {.num_processes = 2, .process_index = 1});

  EXPECT_EQ(once.ptr(), twice.ptr());
}

TEST(PreparedDataLoader, RefusesABatchSizeThatDoesNotDivide) {
  DataLoader loader(Numbers{22}, {.batch_size = 3});
  DataLoader iterable(std::vector<std::int64_t>{1, 2, 3}, {.batch_size = 3});
  const ShardOptions split{.num_processes = 2, .process_index = 0, .split_batches = true};

  for (const DataLoader<at::Tensor>& refused : {loader, iterable}) {
    try {
      (void)prepare_data_loader(refused, split);
      FAIL() << "3 over 2 was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDataSharding);
      EXPECT_THAT(error.message(), HasSubstr("batch size (3) must be a round multiple"));
    }
  }
}

TEST(PreparedDataLoader, ShardsAnIterable) {
  std::vector<std::int64_t> numbers = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  DataLoader loader(numbers, {.batch_size = 2});

  EXPECT_EQ(pass_of(prepare_data_loader(loader, {.num_processes = 2, .process_index = 1})),
            (Batches{{2, 3}, {6, 7}, {1, 2}}));
}

TEST(PreparedDataLoader, CanStopBeingEven) {
  DataLoader loader(Numbers{3}, {.batch_size = 1});
  const auto shard = prepare_data_loader(loader, {.num_processes = 2, .process_index = 1});

  ASSERT_EQ(shard->even_batches(), true);
  shard->set_even_batches(false);

  EXPECT_EQ(pass_of(shard), (Batches{{1}}));
  EXPECT_EQ(loader->even_batches(), std::nullopt);
}

TEST(PreparedDataLoader, ShufflesBySeedAndEpochOnRequest) {
  const auto epochs_with_seed = [](std::int64_t seed, std::int64_t rank) {
    DataLoader loader(Numbers{40}, {.batch_size = 4, .shuffle = true});
    auto shard = prepare_data_loader(loader,
                                     {.num_processes = 2,
                                      .process_index = rank,
                                      .use_seedable_sampler = true,
                                      .data_seed = seed});
    const Batches first = pass_of(shard);
    return std::make_pair(first, pass_of(shard));
  };

  EXPECT_EQ(epochs_with_seed(42, 0), epochs_with_seed(42, 0));
  EXPECT_NE(epochs_with_seed(42, 0), epochs_with_seed(43, 0));
  EXPECT_EQ(epochs_with_seed(42, 0).second, epochs_with_seed(43, 0).first);
}

TEST(DataLoader, RefusesToGoOnWithAPassAfterAnotherBegan) {
  DataLoader loader(Numbers{8}, {.batch_size = 2});
  auto first = loader.begin();
  auto second = loader.begin();

  EXPECT_THROW(++first, Error);
  ++second;
  EXPECT_EQ(numbers_of(*second), (std::vector<std::int64_t>{2, 3}));
}

// Hands out the epoch that it was told.
struct Epochs {
  std::shared_ptr<std::int64_t> epoch = std::make_shared<std::int64_t>(-1);
  void set_epoch(std::int64_t told) { *epoch = told; }
  [[nodiscard]] std::int64_t get(std::size_t /*index*/) const { return *epoch; }
  [[nodiscard]] std::size_t size() const { return 2; }
};

TEST(DataLoader, TellsTheDatasetAndTheBatchSamplerTheEpoch) {
  struct Told final : BatchSamplerBase {
    std::int64_t epoch = -1;
    [[nodiscard]] BatchList begin_pass() override { return BatchList({{0, 1}}); }
    [[nodiscard]] std::int64_t size() const override { return 1; }
    void set_epoch(std::int64_t number) override { epoch = number; }
  };
  const auto batches = std::make_shared<Told>();
  DataLoader loader(Epochs{}, {.batch_sampler = batches});

  EXPECT_EQ(pass_of(loader), (Batches{{0, 0}}));
  EXPECT_EQ(pass_of(loader), (Batches{{1, 1}}));
  loader.set_epoch(7);
  EXPECT_EQ(pass_of(loader), (Batches{{7, 7}}));
  EXPECT_EQ(batches->epoch, 7);
}

TEST(DataLoader, OfNothingYieldsNothing) {
  DataLoader numbers(Numbers{0}, {.batch_size = 2});
  DataLoader list(std::vector<std::int64_t>{}, {.batch_size = 2});

  EXPECT_TRUE(pass_of(numbers).empty());
  EXPECT_TRUE(pass_of(list).empty());
  for (const bool split : {false, true}) {
    const ShardOptions second{.num_processes = 2, .process_index = 1, .split_batches = split};
    EXPECT_TRUE(pass_of(prepare_data_loader(numbers, second)).empty());
    EXPECT_TRUE(pass_of(prepare_data_loader(list, second)).empty());
  }
}

TEST(DataLoader, TellsWhereItsOrderComesFrom) {
  DataLoader shuffled(Numbers{8}, {.shuffle = true});
  DataLoader list(std::vector<std::int64_t>{1}, {});

  EXPECT_NE(std::dynamic_pointer_cast<RandomSampler>(get_sampler(shuffled)), nullptr);
  const auto prepared = prepare_data_loader(
      shuffled, {.num_processes = 2, .process_index = 0, .use_seedable_sampler = true});
  EXPECT_NE(std::dynamic_pointer_cast<SeedableRandomSampler>(get_sampler(prepared)), nullptr);
  EXPECT_EQ(get_sampler(list), nullptr);
}

TEST(DataLoader, PinsBatchesWhereThereIsADevice) {
  DataLoader loader(Numbers{2}, {.batch_size = 2, .pin_memory = true});

  for (const at::Tensor& batch : loader) {
    EXPECT_EQ(numbers_of(batch), (std::vector<std::int64_t>{0, 1}));
    EXPECT_EQ(batch.is_pinned(), at::hasCUDA());
  }
}

// Elements are the numbers of the threads that have read them, in the order in which they came to read.
struct Readers {
  std::shared_ptr<std::mutex> mutex = std::make_shared<std::mutex>();
  std::shared_ptr<std::vector<std::thread::id>> threads =
      std::make_shared<std::vector<std::thread::id>>();
  [[nodiscard]] std::int64_t get(std::size_t /*index*/) const {
    const std::lock_guard lock(*mutex);
    const auto own = std::find(threads->begin(), threads->end(), std::this_thread::get_id());
    if (own != threads->end()) return own - threads->begin();
    threads->push_back(std::this_thread::get_id());
    return std::ssize(*threads) - 1;
  }
  [[nodiscard]] std::size_t size() const { return 64; }
};

TEST(DataLoaderWorkers, PersistFromPassToPass) {
  const Readers readers;
  DataLoader loader(readers, {.batch_size = 1, .num_workers = 2, .persistent_workers = true});

  for (int epoch = 0; epoch < 20; ++epoch) EXPECT_EQ(pass_of(loader).size(), 64U);
  (void)first_batches(loader, 3);

  EXPECT_LE(readers.threads->size(), 2U);
  EXPECT_THROW(DataLoader(Numbers{2}, {.persistent_workers = true}), Error);
}

TEST(DataLoaderWorkers, ThatPersistReadTwoPassesAtOnce) {
  DataLoader loader(Numbers{8}, {.batch_size = 2, .num_workers = 1, .persistent_workers = true});
  auto left = loader.begin();
  auto right = loader.begin();

  EXPECT_EQ(numbers_of(*right), (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(numbers_of(*left), (std::vector<std::int64_t>{0, 1}));
}

// Every second number for the second of two shards.
struct Shards {
  std::int64_t first = 0;
  std::int64_t step = 1;
  std::int64_t count = 4;
  struct Position {
    std::int64_t value, step;
    std::int64_t operator*() const { return value; }
    Position& operator++() {
      value += step;
      return *this;
    }
    bool operator!=(std::int64_t end) const { return value < end; }
  };
  [[nodiscard]] Position begin() const { return {first, step}; }
  [[nodiscard]] std::int64_t end() const { return 7; }
  [[nodiscard]] std::int64_t num_shards() const { return count; }
  [[nodiscard]] Shards shard(std::int64_t num_shards, std::int64_t index) const {
    return {first + index * step, step * num_shards};
  }
};

TEST(PreparedDataLoader, ReadsTheShardOfItsRank) {
  DataLoader loader(Shards{}, {.batch_size = 2});
  const auto of_rank = [&](std::int64_t rank, bool split) {
    return pass_of(prepare_data_loader(
        loader, {.num_processes = 2, .process_index = rank, .split_batches = split}));
  };

  EXPECT_EQ(of_rank(0, false), (Batches{{0, 2}, {4, 6}}));
  EXPECT_EQ(of_rank(1, false), (Batches{{1, 3}, {5}}));
  EXPECT_EQ(of_rank(1, true), (Batches{{1}, {3}, {5}, {0}}));  // not sharded: cut out of each batch
  // More ranks than shards: all are read, and cut.
  DataLoader one(Shards{.count = 1}, {.batch_size = 2});
  EXPECT_EQ(pass_of(prepare_data_loader(one, {.num_processes = 2, .process_index = 1})),
            (Batches{{2, 3}, {6, 0}}));
}

TEST(ActiveDataLoader, KnowsTheRemainderOfAnIterableWithoutALength) {
  DataLoader loader(Shards{.count = 1}, {.batch_size = 2});
  for (const std::int64_t rank : {0, 1}) {
    auto own = prepare_data_loader(loader, {.num_processes = 2, .process_index = rank});
    EXPECT_EQ(pass_of(own).size(), 2U);
    EXPECT_EQ(own->remainder(), 3);  // 4, 5 and 6; then 0
  }
}

}  // namespace
}  // namespace accel::dataloader_test
