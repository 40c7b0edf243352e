// HYBRID_SHARD over nodes: divided inside of each, the same on all.
//
// Copies (DDP) sum gradients over the ranks of a node and then over the nodes, and so do shards: weights are equal to the bit.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/operations.h>
#include <accel/random.h>

#include "tests/support/fake_nodes.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::hybrid_shard_test {
namespace {

using ::testing::HasSubstr;

// An embedding whose table is also the output layer, and two layers between.
struct NetImpl : torch::nn::Module {
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};

  NetImpl() {
    table = register_module("table", torch::nn::Embedding(11, 6));
    first = register_module("first", torch::nn::Linear(6, 9));
    second = register_module("second", torch::nn::Linear(9, 6));
  }
  at::Tensor forward(const at::Tensor& tokens) {
    return second(first(table(tokens)).tanh()).matmul(table->weight.t());
  }
};
TORCH_MODULE(Net);

struct Training {
  std::optional<ShardingStrategy> strategy;  // none: copies
  std::string ignored = {};
  int accumulation = 1;
  double max_norm = 0.0;  // 0: not clipped
  std::string save_to = {};
  std::string load_from = {};
};

at::Tensor flat_parameters(const torch::nn::Module& module) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& parameter : module.parameters())
    parts.push_back(parameter.detach().flatten().clone());
  return at::cat(parts);
}

// Every rank starts from other numbers: those of rank 0 count.
at::Tensor trained(const Training& training) {
  AcceleratorOptions options;
  if (training.strategy) {
    options.fsdp_plugin.emplace().sharding_strategy = *training.strategy;
    options.fsdp_plugin->ignored_modules = training.ignored;
  }
  options.gradient_accumulation_steps = training.accumulation;
  Accelerator accelerator(options);
  set_seed(3 + static_cast<std::uint64_t>(accelerator.process_index()));
  Net net;
  auto [model, optimizer] = accelerator.prepare(
      net,
      std::make_shared<torch::optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(0.01)));
  if (!training.load_from.empty()) accelerator.load_state(training.load_from);
  for (int step = 0; step < 4 * training.accumulation; ++step) {
    auto accumulating = accelerator.accumulate(model);
    const at::Tensor batch =
        (at::arange(4 * accelerator.num_processes(), at::kLong) * 3 + step) % 11;
    const at::Tensor own = batch.chunk(accelerator.num_processes())[accelerator.process_index()];
    accelerator.backward((model(own) - 0.5).square().mean());
    if (training.max_norm > 0 && accelerator.sync_gradients())
      accelerator.clip_grad_norm_(model->parameters(), training.max_norm);
    optimizer.step();
    optimizer.zero_grad();
  }
  if (!training.save_to.empty()) accelerator.save_state(training.save_to);
  return flat_parameters(*net);
}

void expect_equal(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_TRUE(a.equal(b)) << "differ by up to " << (a - b).abs().max().item<double>();
}

struct Nodes {
  int num_nodes;
  int num_places;
  bool is_interleaved = false;
};

class HybridShard : public ::testing::TestWithParam<Nodes> {
 protected:
  void run(const std::function<void()>& body) {
    test::run_ranks(GetParam().num_nodes * GetParam().num_places, [&] {
      const auto [num_nodes, num_places, is_interleaved] = GetParam();
      const int rank = test::rank_of_this_process();
      if (is_interleaved) {
        test::be_on_node(rank % num_nodes, num_nodes, rank / num_nodes, num_places);
      } else {
        test::be_on_node(rank / num_places, num_nodes, rank % num_places, num_places);
      }
      body();
    });
  }
};

TEST_P(HybridShard, TrainsToTheWeightsOfCopiesOnAllNodes) {
  run([] {
    const at::Tensor copies = trained({});
    for (const auto strategy :
         {ShardingStrategy::kHybridShard, ShardingStrategy::kHybridShardZero2}) {
      const at::Tensor own = trained({.strategy = strategy});
      expect_equal(own, copies);
      const at::Tensor all = gather(own.unsqueeze(0));
      for (std::int64_t rank = 1; rank < all.size(0); ++rank) expect_equal(all[rank], all[0]);
    }
  });
}

TEST_P(HybridShard, AccumulatesAndLeavesIgnoredModulesWhole) {
  run([] {
    expect_equal(
        trained(
            {.strategy = ShardingStrategy::kHybridShard, .ignored = "first", .accumulation = 3}),
        trained({.accumulation = 3}));
  });
}

TEST_P(HybridShard, CheckpointsGoOnAsShardsAndAsCopies) {
  const test::ScratchFolder scratch;
  run([&] {
    const std::string of_copies = scratch.path() / "copies";
    const std::string of_shards = scratch.path() / "shards";
    (void)trained({.save_to = of_copies});
    (void)trained({.strategy = ShardingStrategy::kHybridShard, .save_to = of_shards});
    const at::Tensor on = trained({.load_from = of_copies});
    expect_equal(trained({.load_from = of_shards}), on);
    expect_equal(trained({.strategy = ShardingStrategy::kHybridShard, .load_from = of_shards}), on);
  });
}

TEST_P(HybridShard, ClipsByTheNormOfOneReplica) {
  run([] {
    // The norm is a sum over some 200 squares in another order: relative error below 200 * 2^-24. AdamW divides a gradient
    // by its own size, so a factor on all of them passes on as an error of that size in steps of 0.01.
    const at::Tensor copies = trained({.max_norm = 1e-3});
    const at::Tensor own = trained({.strategy = ShardingStrategy::kHybridShard, .max_norm = 1e-3});
    EXPECT_LE((own - copies).abs().max().item<double>(), 1e-5);
    EXPECT_GT(
        (own - trained({.strategy = ShardingStrategy::kHybridShard})).abs().max().item<double>(),
        1e-5)
        << "the bound was never reached";
    const at::Tensor all = gather(own.unsqueeze(0));
    for (std::int64_t rank = 1; rank < all.size(0); ++rank) expect_equal(all[rank], all[0]);
  });
}

INSTANTIATE_TEST_SUITE_P(
    OfNodes,
    HybridShard,
    ::testing::Values(Nodes{2, 1}, Nodes{2, 2}, Nodes{2, 2, true}, Nodes{3, 2}),
    [](const auto& info) {
      return std::to_string(info.param.num_nodes) + "x" + std::to_string(info.param.num_places) +
             (info.param.is_interleaved ? "interleaved" : "");
    });

TEST(HybridShardErrors, NodesWithUnequalNumbersOfRanksAreRefusedByName) {
  test::run_ranks(3, [] {
    const int rank = test::rank_of_this_process();
    test::be_on_node(rank / 2, 2, rank % 2, rank == 2 ? 1 : 2);
    try {
      (void)trained({.strategy = ShardingStrategy::kHybridShard});
      ADD_FAILURE() << "not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_THAT(error.message(),
                  HasSubstr("HYBRID_SHARD divides a model over the ranks of each"));
      EXPECT_THAT(error.message(), HasSubstr("2 nodes with 2 and 1 ranks"));
    }
    PartialState().wait_for_everyone();
  });
}

}  // namespace
}  // namespace accel::hybrid_shard_test
