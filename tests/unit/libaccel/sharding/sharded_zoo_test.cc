// Models of every kind, sharded over 1 to 4 ranks or copied to them: losses and weights are those of one process that
// trains on the batches of all ranks, to the bit, and each rank has its own averages of BatchNorm (rank_training.h).

#include <chrono>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/accelerator.h>
#include <accel/error.h>

#include "tests/support/model_zoo.h"
#include "tests/support/rank_group.h"
#include "tests/support/rank_training.h"

namespace accel {
namespace {

using test::Plugin;
using test::Recipe;
using test::Trained;
using test::ZooEntry;

Plugin plugin_of(ShardingStrategy strategy) {
  FullyShardedDataParallelPlugin plugin;
  plugin.sharding_strategy = strategy;
  return plugin;
}

void expect_same_training(const Trained& found, const Trained& expected) {
  EXPECT_EQ(test::difference(found.losses, expected.losses), "") << "losses";
  EXPECT_EQ(test::difference(found.parameters, expected.parameters), "") << "parameters";
}

// The test's own number of ranks, in a rank; every kind that can be sharded.
template <typename F>
void for_each_kind(F act) {
  for (const ZooEntry& entry : test::model_zoo()) {
    if (entry.shares_storage) continue;
    SCOPED_TRACE(entry.name);
    act(entry);
  }
}

class ShardedZoo : public ::testing::TestWithParam<int> {
 protected:
  static void expect_training_as_one_process(const std::vector<ShardingStrategy>& strategies,
                                             const Recipe& recipe) {
    test::run_ranks(
        GetParam(),
        [&] {
          const PartialState state;  // one group for all
          for_each_kind([&](const ZooEntry& entry) {
            const Trained expected =
                test::train_alone(entry.make, GetParam(), state.process_index(), recipe);
            ASSERT_FALSE(expected.losses.front().equal(expected.losses.back()));
            for (const ShardingStrategy strategy : strategies) {
              SCOPED_TRACE(to_string(strategy));
              const Trained found = test::train_on_ranks(entry.make, plugin_of(strategy), recipe);
              expect_same_training(found, expected);
              // Copies get rank 0's buffers before each forward.
              if (strategy == ShardingStrategy::kNoShard && !state.is_main_process()) continue;
              EXPECT_EQ(test::difference(found.buffers, expected.buffers), "") << "buffers";
            }
          });
        },
        {.timeout = std::chrono::seconds(300)});
  }
};

TEST_P(ShardedZoo, EveryKindTrainsAsOneProcessByEveryStrategy) {
  expect_training_as_one_process(
      {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard},
      {});
}

TEST_P(ShardedZoo, EveryKindTrainsAsOneProcessWithAccumulation) {
  expect_training_as_one_process({ShardingStrategy::kFullShard}, {.steps = 2, .accumulation = 3});
}

TEST_P(ShardedZoo, EveryKindTrainsAsOneProcessUnderBf16Autocast) {
  expect_training_as_one_process({ShardingStrategy::kFullShard},
                                 {.accumulation = 2, .is_bf16 = true});
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShardedZoo, ::testing::Values(1, 2, 3, 4));

// Gloo adds two numbers in either order; more in an order of its own.
TEST(ShardedZooOnGloo, EveryKindTrainsAsOneProcess) {
  const Recipe recipe{.backend = "gloo"};
  test::run_ranks(2, [&] {
    for_each_kind([&](const ZooEntry& entry) {
      // 16-bit sums of Gloo are rounded as those of two numbers are: once.
      expect_same_training(
          test::train_on_ranks(entry.make, plugin_of(ShardingStrategy::kShardGradOp), recipe),
          test::train_alone(entry.make, 2, test::rank_of_this_process(), recipe));
    });
  });
}

TEST(ShardedZooRefusals, NameTwoParametersOfOneMemory) {
  test::run_ranks(2, [] {
    for (const ZooEntry& entry : test::model_zoo()) {
      if (!entry.shares_storage) continue;
      try {
        test::train_on_ranks(entry.make, plugin_of(ShardingStrategy::kFullShard), {});
        ADD_FAILURE() << entry.name << " was taken";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
        EXPECT_THAT(error.message(),
                    ::testing::HasSubstr("low and high are different tensors of one memory"));
      }
    }
  });
}

}  // namespace
}  // namespace accel
