// Models of every kind, sharded over 1 to 4 ranks or copied to them: losses and weights are those of one process that
// trains on the batches of all ranks, to the bit, and each rank has its own averages of BatchNorm (rank_training.h).

#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/accelerator.h>
#include <accel/error.h>

#include "libaccel/collectives/shm/node_identity.h"
#include "tests/support/fake_nodes.h"
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

// The same with what one process makes of it, for this rank.
template <typename F>
void for_each_kind_trained_alone(const Recipe& recipe, F act) {
  std::vector<test::MakeZooModel> makes;
  for_each_kind([&](const ZooEntry& entry) { makes.push_back(entry.make); });
  const std::vector<Trained> expected = test::train_alone_for_ranks(makes, recipe);
  std::size_t number = 0;
  for_each_kind([&](const ZooEntry& entry) { act(entry, expected.at(number++)); });
}

class ShardedZoo : public ::testing::TestWithParam<int> {
 protected:
  static void expect_training_as_one_process(const std::vector<ShardingStrategy>& strategies,
                                             const Recipe& recipe) {
    std::vector<Plugin> plugins;
    for (const ShardingStrategy strategy : strategies) plugins.push_back(plugin_of(strategy));
    expect_training_as_one_process(plugins, recipe);
  }

  static void expect_training_as_one_process(const std::vector<Plugin>& plugins,
                                             const Recipe& recipe) {
    test::run_ranks(
        GetParam(),
        [&] {
          const PartialState state;  // one group for all
          for_each_kind_trained_alone(recipe, [&](const ZooEntry& entry, const Trained& expected) {
            ASSERT_FALSE(expected.losses.front().equal(expected.losses.back()));
            for (const Plugin& plugin : plugins) {
              SCOPED_TRACE(plugin ? to_string(*plugin->sharding_strategy) : "ZeRO");
              const Trained found = test::train_on_ranks(entry.make, plugin, recipe);
              expect_same_training(found, expected);
              // Copies get rank 0's buffers before each forward, and so does a model with whole gradients.
              const bool sends_buffers =
                  !plugin || *plugin->sharding_strategy == ShardingStrategy::kNoShard;
              if (sends_buffers && !state.is_main_process()) continue;
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

TEST_P(ShardedZoo, EveryKindTrainsAsOneProcessWithDividedOptimizerStatesAlone) {
  expect_training_as_one_process(std::vector<Plugin>{std::nullopt},
                                 {.accumulation = 2, .zero_stage = 1});
}

TEST_P(ShardedZoo, EveryKindTrainsAsOneProcessWithWholeTensorsAsShards) {
  Plugin plugin = plugin_of(ShardingStrategy::kFullShard);
  plugin->shard_by_tensor = true;
  expect_training_as_one_process(std::vector<Plugin>{plugin}, {.accumulation = 2});
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

// Two numbers have one sum, whoever adds them.
TEST(ShardedZooOverNodes, EveryKindIsPagedAndTrainsAsOneProcess) {
  test::run_ranks(
      2,
      [] {
        const std::string node = "node" + std::to_string(test::rank_of_this_process());
        ::setenv(shm::kTestNodeVariable, node.c_str(), 1);
        const PartialState state;
        const Recipe recipe{.accumulation = 2};
        for_each_kind_trained_alone(recipe, [&](const ZooEntry& entry, const Trained& expected) {
          const Trained found =
              test::train_on_ranks(entry.make, plugin_of(ShardingStrategy::kFullShard), recipe);
          expect_same_training(found, expected);
          EXPECT_EQ(test::difference(found.buffers, expected.buffers), "") << "buffers";
        });
      },
      {.timeout = std::chrono::seconds(300)});
}

// Copies over the same nodes sum in each node first, as they do.
TEST(ShardedZooOverNodes, EveryKindTrainsAsCopiesWhereNodesAreReplicas) {
  test::run_ranks(
      4,
      [] {
        const int rank = test::rank_of_this_process();
        test::be_on_node(rank / 2, 2, rank % 2, 2);
        const PartialState state;
        for_each_kind([&](const ZooEntry& entry) {
          const Trained copies =
              test::train_on_ranks(entry.make, plugin_of(ShardingStrategy::kNoShard), {});
          for (const auto strategy :
               {ShardingStrategy::kHybridShard, ShardingStrategy::kHybridShardZero2}) {
            SCOPED_TRACE(to_string(strategy));
            expect_same_training(test::train_on_ranks(entry.make, plugin_of(strategy), {}), copies);
          }
        });
      },
      {.timeout = std::chrono::seconds(300)});
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
