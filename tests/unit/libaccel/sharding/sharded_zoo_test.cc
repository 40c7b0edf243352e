// Models of every kind, sharded over 1 to 4 ranks and two nodes or copied to them: losses and weights are those of one process
// that trains on the batches of all ranks, to the bit, and each rank has its own averages of BatchNorm (rank_training.h).
// docs/internals/testing.md has a table of what runs with what.

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/accelerator.h>
#include <accel/error.h>

#include "libaccel/engine/shm/memory/node_identity.h"
#include "tests/support/fake_nodes.h"
#include "tests/support/model_zoo.h"
#include "tests/support/rank_group.h"
#include "tests/support/rank_training.h"

namespace accel::sharded_zoo_test {
namespace {

using test::Lesson;
using test::Plugin;
using test::Recipe;
using test::Trained;
using test::ZooEntry;

constexpr std::string_view kLstm = "Lstm";

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

template <typename F>
void for_each_kind_that_runs(const Recipe& recipe, F act) {
  for_each_kind([&](const ZooEntry& entry) {
    // oneDNN has no LSTM in 16 bits for every CPU: none in bf16 without AVX-512. LibTorch throws there, in Python too.
    const bool may_not = recipe.precision != PrecisionType::kNo && entry.name == kLstm;
    if (!may_not || test::can_run(entry.make, recipe)) act(entry);
  });
}

bool is_in_16_bits(const ZooEntry& entry) {
  return at::isReducedFloatingType(entry.make()->parameters().front().scalar_type());
}

// Every kind with what one process makes of it, for this rank.
template <typename F>
void for_each_kind_trained_alone(const Recipe& recipe, F act) {
  std::vector<Lesson> lessons;
  for_each_kind_that_runs(recipe, [&](const ZooEntry& entry) {
    lessons.push_back({entry.make, recipe});
  });
  const std::vector<Trained> expected = test::train_alone_for_ranks(lessons);
  std::size_t number = 0;
  for_each_kind_that_runs(recipe,
                          [&](const ZooEntry& entry) { act(entry, expected.at(number++)); });
}

struct Layout {
  int ranks;
  int ranks_per_node;
  [[nodiscard]] int num_nodes() const { return ranks / ranks_per_node; }
};

const std::vector<ShardingStrategy> kOfOneNode = {
    ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard};
const std::vector<ShardingStrategy> kOfNodes = {ShardingStrategy::kHybridShard,
                                                ShardingStrategy::kHybridShardZero2,
                                                ShardingStrategy::kShardGradOp,
                                                ShardingStrategy::kNoShard};

// Ranks of one node or of two.
class ShardedZoo : public ::testing::TestWithParam<Layout> {
 protected:
  static void expect_training_as_one_process(const Recipe& recipe) {
    std::vector<Plugin> plugins;
    for (const ShardingStrategy strategy : GetParam().num_nodes() > 1 ? kOfNodes : kOfOneNode)
      plugins.push_back(plugin_of(strategy));
    expect_training_as_one_process(plugins, recipe);
  }

  static void expect_training_as_one_process(const std::vector<Plugin>& plugins, Recipe recipe) {
    recipe.ranks_per_node = GetParam().ranks_per_node;
    test::run_ranks(GetParam().ranks, [&] {
      be_where_the_layout_says();
      const PartialState state;  // one group for all
      for_each_kind_trained_alone(recipe, [&](const ZooEntry& entry, const Trained& expected) {
        const Trained untrained =
            test::train_alone(entry.make, 1, 0, {.steps = 0, .precision = recipe.precision});
        ASSERT_NE(test::difference(expected.parameters, untrained.parameters), "");
        for (const Plugin& plugin : plugins) expect_as_alone(entry, plugin, recipe, expected);
      });
    });
  }

 private:
  static void be_where_the_layout_says() {
    const auto [ranks, per_node] = GetParam();
    const int rank = test::rank_of_this_process();
    if (ranks > per_node)
      test::be_on_node(rank / per_node, ranks / per_node, rank % per_node, per_node);
  }

  static void expect_as_alone(const ZooEntry& entry,
                              const Plugin& plugin,
                              const Recipe& recipe,
                              const Trained& expected) {
    SCOPED_TRACE(plugin ? to_string(*plugin->sharding_strategy) : "ZeRO");
    const bool are_copies = plugin && *plugin->sharding_strategy == ShardingStrategy::kNoShard;
    const Trained found = test::train_on_ranks(entry.make, plugin, recipe);
    if (are_copies && recipe.precision != PrecisionType::kNo && is_in_16_bits(entry)) {
      Recipe of_copies = recipe;
      of_copies.keeps_16_bits = true;
      expect_same_training(
          found,
          test::train_alone(entry.make, GetParam().ranks, test::rank_of_this_process(), of_copies));
      return;
    }
    expect_same_training(found, expected);
    // Copies get rank 0's buffers before each forward, and so does a model with whole gradients.
    const bool sends_buffers = !plugin || are_copies;
    if (sends_buffers && test::rank_of_this_process() != 0) return;
    EXPECT_EQ(test::difference(found.buffers, expected.buffers), "") << "buffers";
  }
};

TEST_P(ShardedZoo, EveryKindTrainsAsOneProcessByEveryStrategy) {
  expect_training_as_one_process({});
}

TEST_P(ShardedZoo, EveryKindTrainsAsOneProcessWithAccumulation) {
  expect_training_as_one_process({.steps = 2, .accumulation = 3});
}

TEST_P(ShardedZoo, EveryKindTrainsAsOneProcessUnderBf16Autocast) {
  expect_training_as_one_process({.accumulation = 2, .precision = PrecisionType::kBf16});
}

std::string layout_name(const ::testing::TestParamInfo<Layout>& info) {
  const auto [ranks, per_node] = info.param;
  return std::to_string(ranks) +
         (ranks > per_node ? "OnNodesOf" + std::to_string(per_node) : std::string());
}

constexpr Layout kOneNode[] = {{1, 1}, {2, 2}, {3, 3}, {4, 4}};
INSTANTIATE_TEST_SUITE_P(Ranks, ShardedZoo, ::testing::ValuesIn(kOneNode), layout_name);
INSTANTIATE_TEST_SUITE_P(Nodes, ShardedZoo, ::testing::Values(Layout{4, 2}), layout_name);

class DividedZoo : public ShardedZoo {};

TEST_P(DividedZoo, EveryKindTrainsAsOneProcessWithDividedOptimizerStatesAlone) {
  expect_training_as_one_process({std::nullopt}, {.accumulation = 2, .zero_stage = 1});
}

TEST_P(DividedZoo, EveryKindTrainsAsOneProcessWithWholeTensorsAsShards) {
  Plugin plugin = plugin_of(ShardingStrategy::kFullShard);
  plugin->shard_by_tensor = true;
  expect_training_as_one_process({plugin}, {.accumulation = 2});
}

INSTANTIATE_TEST_SUITE_P(Ranks, DividedZoo, ::testing::ValuesIn(kOneNode), layout_name);

// By the strategies that differ: of two nodes the one that divides in each, and the one that divides over all.
class TunedZoo : public ShardedZoo {
 protected:
  static bool is_on_nodes() { return GetParam().num_nodes() > 1; }
  static std::vector<Plugin> divided() {
    return {
        plugin_of(is_on_nodes() ? ShardingStrategy::kHybridShard : ShardingStrategy::kFullShard),
        plugin_of(ShardingStrategy::kShardGradOp)};
  }
};

// A scale is a power of two, which changes no bit of a gradient that is in fp32.
TEST_P(TunedZoo, EveryKindTrainsAsOneProcessInFp16WithAScaler) {
  if (is_on_nodes()) {
    expect_training_as_one_process(divided(), {.steps = 2, .precision = PrecisionType::kFp16});
  } else {
    expect_training_as_one_process({.accumulation = 2, .precision = PrecisionType::kFp16});
  }
}

TEST_P(TunedZoo, EveryKindTrainsAsOneProcessWithFusedKernels) {
  expect_training_as_one_process(
      divided(),
      {.steps = is_on_nodes() ? 2 : 3, .kernels = test::StepKernels::kFusedOnPaddedMemory});
  if (is_on_nodes()) return;
  expect_training_as_one_process({plugin_of(ShardingStrategy::kNoShard)},
                                 {.kernels = test::StepKernels::kFused});
}

constexpr Layout kTwoRanksOrNodes[] = {{2, 2}, {4, 2}};
INSTANTIATE_TEST_SUITE_P(Ranks, TunedZoo, ::testing::ValuesIn(kTwoRanksOrNodes), layout_name);

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
  test::run_ranks(2, [] {
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
  });
}

// Sums of n squares in fp32, in whatever order, are off by n * 2^-24 of them at most; the norms of gradients of 16 bits are
// rounded to as many in up to three places.
double largest_error_of_norm(const Trained& trained) {
  double error = 0;
  for (const at::Tensor& parameter : trained.parameters) {
    error += static_cast<double>(parameter.numel()) * 0x1p-24;
    if (parameter.scalar_type() == at::kBFloat16) error = std::max(error, 3 * 0x1p-8);
  }
  return error;
}

void expect_same_clipping(const ZooEntry& entry, ShardingStrategy strategy, Recipe recipe) {
  SCOPED_TRACE(to_string(strategy));
  recipe.max_norm = 1e-3;
  const Trained found = test::train_on_ranks(entry.make, plugin_of(strategy), recipe);
  recipe.norms = found.norms;
  const Trained expected = test::train_alone(entry.make, 2, test::rank_of_this_process(), recipe);
  expect_same_training(found, expected);
  ASSERT_EQ(found.norms.size(), 3U);
  for (std::size_t step = 0; step < found.norms.size(); ++step) {
    const double exact = expected.norms[step].item<double>();
    EXPECT_GT(exact, *recipe.max_norm) << "nothing was clipped";
    EXPECT_NEAR(found.norms[step].item<double>() / exact, 1, largest_error_of_norm(found)) << step;
  }
}

// Norms to a tolerance, and what is clipped by them to the bit.
TEST(ClippedZoo, EveryKindTrainsAsOneProcess) {
  test::run_ranks(2, [] {
    const PartialState state;
    const Recipe in_fp16{.precision = PrecisionType::kFp16};
    for_each_kind_that_runs(in_fp16, [&](const ZooEntry& entry) {
      expect_same_clipping(entry, ShardingStrategy::kFullShard, in_fp16);
    });
    for_each_kind([&](const ZooEntry& entry) {
      expect_same_clipping(entry, ShardingStrategy::kShardGradOp, {.accumulation = 2});
      expect_same_clipping(entry, ShardingStrategy::kNoShard, {});
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
}  // namespace accel::sharded_zoo_test
