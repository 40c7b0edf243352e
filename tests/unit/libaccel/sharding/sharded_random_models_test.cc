// Small models made at random (random_model.h), of which each rank's batches use other layers: sharded over two ranks they
// train as on one process, to the bit. As many as the budget allows, beginning at the run's seed, and a thousand at most
// (--long). A failure prints the seed of its model.

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <accel/operations.h>
#include <accel/state.h>

#include "tests/support/random_model.h"
#include "tests/support/rank_group.h"
#include "tests/support/rank_training.h"
#include "tests/support/test_budget.h"

namespace accel {
namespace {

constexpr std::uint64_t kMost = 1000;
constexpr std::uint64_t kLeast = 100;  // however loaded the machine is
constexpr std::uint64_t kAtOnce = 20;

test::MakeZooModel model_of(std::uint64_t seed) {
  return [seed] {
    return std::make_shared<test::RandomModel>(
        seed, test::RandomModelOptions{.may_share_storage = false});
  };
}

void expect_training_as_one_process(std::uint64_t first_seed, const test::Recipe& recipe) {
  std::vector<test::MakeZooModel> makes;
  for (std::uint64_t i = 0; i < kAtOnce; ++i) makes.push_back(model_of(first_seed + i));
  const std::vector<test::Trained> expected = test::train_alone_for_ranks(makes, recipe);
  for (std::uint64_t i = 0; i < kAtOnce; ++i) {
    SCOPED_TRACE("seed " + std::to_string(first_seed + i));
    const auto found = test::train_on_ranks(makes.at(i), FullyShardedDataParallelPlugin{}, recipe);
    ASSERT_EQ(test::difference(found.losses, expected.at(i).losses), "");
    ASSERT_EQ(test::difference(found.parameters, expected.at(i).parameters), "");
  }
}

TEST(ShardedRandomModels, TrainOnTwoRanksAsOnOneProcess) {
  test::run_ranks(
      2,
      [] {
        const PartialState state;  // one group for all
        const auto start = std::chrono::steady_clock::now();
        const auto is_over = [&](std::uint64_t done) {
          if (done == kMost) return true;
          if (done < kLeast || test::is_long_run()) return false;
          const bool mine = std::chrono::steady_clock::now() - start > test::test_budget(0.15);
          return broadcast(at::full({1}, mine ? 1 : 0, at::kLong)).item<std::int64_t>() != 0;
        };
        for (std::uint64_t done = 0; !is_over(done); done += kAtOnce) {
          const int accumulation = static_cast<int>(1 + done / kAtOnce % 2);
          expect_training_as_one_process(test::test_seed() + done,
                                         {.steps = 2, .accumulation = accumulation});
          if (::testing::Test::HasFatalFailure()) return;
        }
      },
      {.timeout = std::chrono::seconds(test::is_long_run() ? 900 : 200)});
}

}  // namespace
}  // namespace accel
