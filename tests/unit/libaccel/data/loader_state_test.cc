// Where a loader stands: skipping, saving in the middle of an epoch, and going on.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/dataloader.h>
#include <accel/error.h>

#include "tests/support/numbers.h"

namespace accel::loader_state_test {
namespace {

using test::first_batches;
using test::generator_with;
using test::Numbers;
using test::numbers_of;
using test::pass_of;
using ::testing::HasSubstr;
using Batches = test::NumberBatches;

TEST(SkipFirstBatches, LeavesThemOutOfThisEpochOnly) {
  DataLoader loader(Numbers{16}, {.batch_size = 4});
  const auto rest = skip_first_batches(loader, 2);

  EXPECT_EQ(rest.size(), 2);
  EXPECT_EQ(pass_of(rest), (Batches{{8, 9, 10, 11}, {12, 13, 14, 15}}));
  EXPECT_EQ(pass_of(rest).size(), 4U);
  EXPECT_EQ(loader.epoch(), 2);
}

TEST(SkipFirstBatches, ReadsWhatItSkipsOfAnIterable) {
  DataLoader loader(std::vector<std::int64_t>{0, 1, 2, 3, 4, 5}, {.batch_size = 2});

  EXPECT_EQ(pass_of(skip_first_batches(loader, 1)), (Batches{{2, 3}, {4, 5}}));
}

TEST(LoaderState, GoesOnBehindTheLastBatchWithoutReadingTheFirst) {
  DataLoader loader(Numbers{20},
                    {.batch_size = 2, .shuffle = true, .generator = generator_with(3)});
  (void)pass_of(loader);
  const Batches before = first_batches(loader, 4);
  const StateDict state = loader->state_dict();

  Numbers numbers{20};
  DataLoader resumed(numbers, {.batch_size = 2, .shuffle = true, .generator = generator_with(8)});
  resumed->load_state_dict(state);
  const Batches after = pass_of(resumed);

  EXPECT_EQ(*numbers.reads, 12);
  DataLoader whole(Numbers{20}, {.batch_size = 2, .shuffle = true, .generator = generator_with(3)});
  (void)pass_of(whole);
  Batches expected = pass_of(whole);
  Batches joined = before;
  joined.insert(joined.end(), after.begin(), after.end());
  EXPECT_EQ(joined, expected);
  EXPECT_EQ(resumed.epoch(), 2);
  EXPECT_EQ(pass_of(resumed), pass_of(whole));
}

TEST(LoaderState, GoesOnWithoutAGeneratorOfItsOwn) {
  DataLoader loader(Numbers{20}, {.batch_size = 2, .shuffle = true});
  const Batches before = first_batches(loader, 4);
  const StateDict state = loader->state_dict();
  const at::Tensor random = at::globalContext().defaultGenerator(at::kCPU).get_state();

  DataLoader resumed(Numbers{20}, {.batch_size = 2, .shuffle = true});
  resumed->load_state_dict(state);
  const Batches after = pass_of(resumed);

  std::vector<std::int64_t> seen;
  for (const auto& batches : {before, after}) {
    for (const auto& batch : batches) seen.insert(seen.end(), batch.begin(), batch.end());
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen.size(), 20U);
  EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
  EXPECT_TRUE(random.equal(at::globalContext().defaultGenerator(at::kCPU).get_state()));
}

TEST(LoaderState, OfTheLastBatchIsTheNextEpoch) {
  DataLoader loader(Numbers{4}, {.batch_size = 2});
  StateDict state;
  for (const at::Tensor& batch : loader) {
    (void)batch;
    state = loader->state_dict();
  }

  EXPECT_EQ(std::get<std::int64_t>(state.values.at("epoch")), 1);
  EXPECT_EQ(std::get<std::int64_t>(state.values.at("batches")), 0);
  EXPECT_EQ(loader->state_dict().values, state.values);
}

TEST(LoaderState, FitsAnotherNumberOfRanks) {
  DataLoader loader(Numbers{48}, {.batch_size = 2});
  const auto of_two = prepare_data_loader(loader, {.num_processes = 2, .process_index = 0});
  (void)first_batches(of_two, 6);

  auto of_three = prepare_data_loader(loader, {.num_processes = 3, .process_index = 1});
  of_three->load_state_dict(of_two->state_dict());

  EXPECT_EQ(pass_of(of_three), (Batches{{26, 27}, {32, 33}, {38, 39}, {44, 45}}));
}

TEST(LoaderState, GoesOnBetweenTwoBatchesOfTheNewRanks) {
  DataLoader loader(Numbers{48}, {.batch_size = 2});
  const auto of_two = prepare_data_loader(loader, {.num_processes = 2, .process_index = 0});
  (void)first_batches(of_two, 1);
  auto of_three = prepare_data_loader(loader, {.num_processes = 3, .process_index = 1});

  of_three->load_state_dict(of_two->state_dict());

  // 44 samples are left: seven groups of 6, and 2, which are completed from the first that were left.
  EXPECT_EQ(pass_of(of_three),
            (Batches{{6, 7}, {12, 13}, {18, 19}, {24, 25}, {30, 31}, {36, 37}, {42, 43}, {4, 5}}));
  EXPECT_EQ(of_three->remainder(), 2);
  EXPECT_EQ(pass_of(of_three).size(), 8U);  // of all 48
}

// Batches of a rank as a job of `num_processes` has them that goes on with `state`, and the rows that are no repeats.
Batches rest_of(const StateDict& state, std::int64_t num_processes, std::int64_t batch_size) {
  Batches rest;
  for (std::int64_t rank = 0; rank < num_processes; ++rank) {
    DataLoader loader(
        Numbers{47},
        {.batch_size = batch_size, .sampler = std::make_shared<PermutationSampler>(47, 9)});
    auto own = prepare_data_loader(loader, {.num_processes = num_processes, .process_index = rank});
    own->load_state_dict(state);
    const Batches batches = pass_of(own);
    rest.resize(std::max(rest.size(), batches.size()));
    for (std::size_t i = 0; i < batches.size(); ++i)
      rest[i].insert(rest[i].end(), batches[i].begin(), batches[i].end());
    if (!rest.empty() && rank + 1 == num_processes && own->remainder() > 0)
      rest.back().resize(static_cast<std::size_t>(own->remainder()));
  }
  return rest;
}

TEST(LoaderState, GivesEverySampleOnceForAnyRanksAndBatches) {
  for (const std::int64_t before : {1, 2, 3, 5}) {
    for (const std::int64_t after : {1, 2, 3, 4, 7}) {
      DataLoader loader(Numbers{47},
                        {.batch_size = 3, .sampler = std::make_shared<PermutationSampler>(47, 9)});
      auto own = prepare_data_loader(loader, {.num_processes = before, .process_index = 0});
      (void)first_batches(own, 2);
      std::vector<std::int64_t> seen;
      const IndexOrder order = PermutationSampler(47, 9).begin_pass();
      for (std::int64_t i = 0; i < 2 * 3 * before; ++i) seen.push_back(order[i]);

      for (const auto& batch : rest_of(own->state_dict(), after, 4))
        seen.insert(seen.end(), batch.begin(), batch.end());

      std::sort(seen.begin(), seen.end());
      ASSERT_EQ(seen.size(), 47U) << before << " ranks, then " << after;
      for (std::int64_t i = 0; i < 47; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)], i);
    }
  }
}

TEST(LoaderState, OfAPassThatBeganAnywhereGoesOnWithItsBatches) {
  const auto make = [] {
    DataLoader loader(Numbers{48}, {.batch_size = 2});
    return prepare_data_loader(loader, {.num_processes = 3, .process_index = 2});
  };
  StateDict state;
  state.values = {
      {"epoch", std::int64_t{0}}, {"batches", std::int64_t{2}}, {"samples", std::int64_t{4}}};
  auto whole = make();
  whole->load_state_dict(state);
  const Batches expected = pass_of(whole);
  auto first = make();
  first->load_state_dict(state);
  Batches seen = first_batches(first, 3);

  auto second = make();
  second->load_state_dict(first->state_dict());
  const Batches rest = pass_of(second);

  seen.insert(seen.end(), rest.begin(), rest.end());
  EXPECT_EQ(seen, expected);
}

TEST(LoaderState, ReadsAnIterableToWhereItGoesOn) {
  DataLoader loader(std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11},
                    {.batch_size = 2});
  (void)first_batches(loader, 2);
  auto of_three = prepare_data_loader(loader, {.num_processes = 3, .process_index = 1});

  of_three->load_state_dict(loader->state_dict());

  EXPECT_EQ(pass_of(of_three), (Batches{{6, 7}, {4, 5}}));
  EXPECT_EQ(of_three->remainder(), 2);
}

// Batches of a declared size, that begin at their own places alone.
struct FixedBatches final : BatchSamplerBase {
  [[nodiscard]] BatchList begin_pass() override {
    return BatchList({{0, 1}, {2, 3}, {4, 5}, {6, 7}});
  }
  [[nodiscard]] std::int64_t size() const override { return 4; }
  [[nodiscard]] std::optional<std::int64_t> batch_size() const override { return 2; }
};

TEST(LoaderState, RefusesBatchesThatBeginElsewhere) {
  DataLoader loader(Numbers{8}, {.batch_sampler = std::make_shared<FixedBatches>()});
  (void)first_batches(loader, 1);
  auto of_two = prepare_data_loader(loader, {.num_processes = 2, .process_index = 0});

  try {
    of_two->load_state_dict(loader->state_dict());
    FAIL() << "2 samples were taken for a multiple of 4";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCheckpointMismatch);
    EXPECT_THAT(error.message(), HasSubstr("after 2 samples of epoch 0"));
  }
}

TEST(LoaderState, IsGivenUpForAnotherEpoch) {
  DataLoader loader(Numbers{8}, {.batch_size = 2});
  (void)first_batches(loader, 2);
  const StateDict state = loader->state_dict();

  DataLoader resumed(Numbers{8}, {.batch_size = 2});
  resumed->load_state_dict(state);
  resumed.set_epoch(5);

  EXPECT_EQ(pass_of(resumed).size(), 4U);
  EXPECT_EQ(resumed.epoch(), 6);
}

TEST(LoaderState, NamesWhatIsMissing) {
  DataLoader loader(Numbers{8}, {.batch_size = 2});

  EXPECT_THROW(loader->load_state_dict({}), Error);
}

}  // namespace
}  // namespace accel::loader_state_test
