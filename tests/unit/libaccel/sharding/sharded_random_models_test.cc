// Small models made at random (random_model.h), of which each rank's batches use other layers, divided by a strategy, into
// units, with accumulation and a precision made at random as well, over 1 to 4 ranks and two nodes: they train as on one
// process, to the bit. As many as the budget allows, beginning at the run's seed, and a thousand at most (--long). A failure
// prints the seed of its model.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <accel/operations.h>
#include <accel/state.h>

#include "tests/support/fake_nodes.h"
#include "tests/support/random_model.h"
#include "tests/support/rank_group.h"
#include "tests/support/rank_training.h"
#include "tests/support/test_budget.h"

namespace accel::sharded_random_models_test {
namespace {

using test::train_on_ranks;

struct Layout {
  int ranks;
  int ranks_per_node;
};

constexpr Layout kLayouts[] = {{1, 1}, {2, 2}, {3, 3}, {4, 4}, {4, 2}};
// Of each layout.
constexpr std::uint64_t kMost = 200;
constexpr std::uint64_t kLeast = 20;  // however loaded the machine is
constexpr std::uint64_t kAtOnce = 20;
constexpr double kShare = 0.15 / 5;  // of the budget

struct Drawn {
  test::Plugin plugin;  // none: ZeRO
  test::Lesson lesson;
  std::string text;
};

Drawn draw(std::uint64_t seed, const Layout& layout) {
  std::mt19937_64 random(~seed);  // others than those of the model
  const auto below = [&](std::uint64_t limit) { return static_cast<int>(random() % limit); };
  Drawn drawn;
  drawn.lesson.recipe = {.steps = 2,
                         .accumulation = 1 + below(3),
                         .precision = below(2) == 0 ? PrecisionType::kNo : PrecisionType::kBf16,
                         .ranks_per_node = layout.ranks_per_node};
  const int strategy = below(6);
  if (strategy == 0) {  // ZeRO
    drawn.lesson.recipe.zero_stage = 1 + below(3);
  } else {
    drawn.plugin.emplace().sharding_strategy = static_cast<ShardingStrategy>(strategy - 1);
    // Units of a module, of several, or one.
    drawn.plugin->auto_wrap_policy = AutoWrapPolicy::kSizeBasedWrap;
    drawn.plugin->min_num_params = std::int64_t{1} << 4 * below(4);
    drawn.plugin->shard_by_tensor = below(4) == 0;
  }
  const bool averages_as_copies =
      strategy == 0 || drawn.plugin->sharding_strategy == ShardingStrategy::kNoShard;
  drawn.lesson.make = [seed, averages_as_copies] {
    return std::make_shared<test::RandomModel>(
        seed,
        test::RandomModelOptions{.may_share_storage = false,
                                 .may_freeze_first_layer = !averages_as_copies});
  };
  const std::string name(strategy == 0 ? "ZeRO" : to_string(*drawn.plugin->sharding_strategy));
  drawn.text =
      name + " on " + std::to_string(layout.ranks) + " ranks, seed " + std::to_string(seed);
  return drawn;
}

class ShardedRandomModels : public ::testing::TestWithParam<std::size_t> {
 protected:
  static void expect_training_as_one_process(std::uint64_t first_seed) {
    std::vector<Drawn> all;
    std::vector<test::Lesson> lessons;
    for (std::uint64_t i = 0; i < kAtOnce; ++i) {
      all.push_back(draw(first_seed + i * std::size(kLayouts), layout()));
      lessons.push_back(all.back().lesson);
    }
    const std::vector<test::Trained> expected = test::train_alone_for_ranks(lessons);
    for (std::size_t i = 0; i < all.size(); ++i) {
      SCOPED_TRACE(all[i].text);
      test::Trained found;
      ASSERT_NO_THROW(found = train_on_ranks(lessons[i].make, all[i].plugin, lessons[i].recipe));
      ASSERT_EQ(test::difference(found.losses, expected[i].losses), "");
      ASSERT_EQ(test::difference(found.parameters, expected[i].parameters), "");
    }
  }

  static const Layout& layout() { return kLayouts[GetParam()]; }
};

TEST_P(ShardedRandomModels, TrainAsOnOneProcess) {
  test::run_ranks(layout().ranks, [] {
    const auto [ranks, per_node] = layout();
    const int rank = test::rank_of_this_process();
    if (ranks > per_node)
      test::be_on_node(rank / per_node, ranks / per_node, rank % per_node, per_node);
    const PartialState state;  // one group for all
    const auto start = std::chrono::steady_clock::now();
    const auto is_over = [&](std::uint64_t done) {
      if (done == kMost) return true;
      if (done < kLeast || test::is_long_run()) return false;
      const bool mine = std::chrono::steady_clock::now() - start > test::test_budget(kShare);
      return broadcast(at::full({1}, mine ? 1 : 0, at::kLong)).item<std::int64_t>() != 0;
    };
    for (std::uint64_t done = 0; !is_over(done); done += kAtOnce) {
      expect_training_as_one_process(test::test_seed() + GetParam() + done * std::size(kLayouts));
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

std::string layout_name(const ::testing::TestParamInfo<std::size_t>& info) {
  const auto [ranks, per_node] = kLayouts[info.param];
  return std::to_string(ranks) + "OnNodesOf" + std::to_string(per_node);
}

INSTANTIATE_TEST_SUITE_P(Layouts,
                         ShardedRandomModels,
                         ::testing::Range(std::size_t{0}, std::size(kLayouts)),
                         layout_name);

}  // namespace
}  // namespace accel::sharded_random_models_test
