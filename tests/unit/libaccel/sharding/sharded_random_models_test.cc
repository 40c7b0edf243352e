// Small models made at random (random_model.h), of which each rank's batches use other layers: sharded over two ranks they
// train as on one process, to the bit. As many as the budget allows, beginning at the run's seed, and a thousand at most
// (--long). A failure prints the seed of its model.

#include <chrono>
#include <memory>

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

TEST(ShardedRandomModels, TrainOnTwoRanksAsOnOneProcess) {
  test::run_ranks(
      2,
      [] {
        const PartialState state;
        const auto start = std::chrono::steady_clock::now();
        const auto is_over = [&](std::uint64_t done) {
          if (done == kMost) return true;
          if (done < kLeast || test::is_long_run() || done % 20 != 0) return false;
          const bool mine = std::chrono::steady_clock::now() - start > test::test_budget(0.15);
          return broadcast(at::full({1}, mine ? 1 : 0, at::kLong)).item<std::int64_t>() != 0;
        };
        for (std::uint64_t done = 0; !is_over(done); ++done) {
          const std::uint64_t seed = test::test_seed() + done;
          SCOPED_TRACE("seed " + std::to_string(seed));
          const test::MakeZooModel make = [seed] {
            return std::make_shared<test::RandomModel>(
                seed, test::RandomModelOptions{.may_share_storage = false});
          };
          const test::Recipe recipe{.steps = 2, .accumulation = static_cast<int>(1 + seed % 2)};
          const auto expected = test::train_alone(make, 2, state.process_index(), recipe);
          const auto found = test::train_on_ranks(make, FullyShardedDataParallelPlugin{}, recipe);
          ASSERT_EQ(test::difference(found.losses, expected.losses), "");
          ASSERT_EQ(test::difference(found.parameters, expected.parameters), "");
        }
      },
      {.timeout = std::chrono::seconds(test::is_long_run() ? 900 : 200)});
}

}  // namespace
}  // namespace accel
