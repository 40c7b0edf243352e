// Where a loader stands: skipping, saving in the middle of an epoch, and going on.

#include <algorithm>
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

TEST(LoaderState, RefusesRanksThatDoNotFit) {
  DataLoader loader(Numbers{48}, {.batch_size = 2});
  const auto of_two = prepare_data_loader(loader, {.num_processes = 2, .process_index = 0});
  (void)first_batches(of_two, 1);
  auto of_three = prepare_data_loader(loader, {.num_processes = 3, .process_index = 1});

  try {
    of_three->load_state_dict(of_two->state_dict());
    FAIL() << "4 samples were taken for a multiple of 6";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCheckpointMismatch);
    EXPECT_THAT(error.message(), HasSubstr("after 4 samples of epoch 0"));
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
