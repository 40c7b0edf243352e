// HYBRID_SHARD: divided over some ranks, the same on the others. By itself over nodes, divided inside of each; a ParallelismConfig
// says how many copies there are, on one node too.
//
// Copies (DDP) sum gradients over the ranks of a node and then over the nodes, and so do shards: weights are equal to the bit.

#include <cstdlib>
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

#include "libaccel/engine/shm/memory/node_identity.h"
#include "tests/support/error_of.h"
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
  std::optional<ParallelismConfig> config = {};
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
  options.parallelism_config = training.config;
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

// Ranks of a copy are neighbours in rank; where nodes have them in turn they share no memory.
TEST_P(HybridShard, AConfigurationOfTheNodesIsTheStrategy) {
  run([] {
    const ParallelismConfig config{.dp_replicate_size = GetParam().num_nodes,
                                   .dp_shard_size = GetParam().num_places};
    if (GetParam().is_interleaved) {
      const int node = test::rank_of_this_process() % GetParam().num_nodes;
      ::setenv(shm::kTestNodeVariable, std::to_string(node).c_str(), 1);
      const Error error = test::error_of([&] { (void)trained({.config = config}); });
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_THAT(error.message(), HasSubstr("HYBRID_SHARD needs ranks that share memory"));
      PartialState().wait_for_everyone();
      return;
    }
    expect_equal(trained({.config = config}),
                 trained({.strategy = ShardingStrategy::kHybridShard}));
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

// Leaves the job, and joins another one of the same ranks.
void begin_on_nodes_of(int num_places) {
  const int rank = test::rank_of_this_process();
  PartialState::reset();
  test::be_on_node(rank / num_places, 4 / num_places, rank % num_places, num_places);
}

TEST(ParallelismOfOneNode, TwoCopiesTrainAsThoseOfTwoNodes) {
  test::run_ranks(4, [] {
    const Training two_copies = {.config = {{.dp_replicate_size = 2, .dp_shard_size = 2}},
                                 .ignored = "first",
                                 .accumulation = 2};
    begin_on_nodes_of(2);
    const at::Tensor of_nodes = trained(
        {.strategy = ShardingStrategy::kHybridShard, .ignored = "first", .accumulation = 2});
    begin_on_nodes_of(4);
    const at::Tensor own = trained(two_copies);

    expect_equal(own, of_nodes);
    const at::Tensor all = gather(own.unsqueeze(0));
    for (std::int64_t rank = 1; rank < all.size(0); ++rank) expect_equal(all[rank], all[0]);
  });
}

TEST(ParallelismOfOneNode, AllRanksToDivideIsFullShardAndAllCopiesIsNoPlugin) {
  test::run_ranks(4, [] {
    expect_equal(trained({.config = {{.dp_shard_size = 4}}}),
                 trained({.strategy = ShardingStrategy::kFullShard}));
    expect_equal(trained({.config = {{.dp_replicate_size = 4}}}), trained({}));
  });
}

TEST(ParallelismOfOneNode, CheckpointsGoOnWithAnotherLayout) {
  const test::ScratchFolder scratch;
  test::run_ranks(4, [&] {
    const std::string folder = scratch.path() / "two_copies";
    const ParallelismConfig two_copies{.dp_replicate_size = 2, .dp_shard_size = 2};
    (void)trained({.config = two_copies, .save_to = folder});
    expect_equal(trained({.config = two_copies, .load_from = folder}),
                 trained({.config = two_copies, .load_from = folder}));
    // Gradients of one copy are sums in another order: a difference of the last places in each step of 0.01.
    const at::Tensor divided = trained({.config = {{.dp_shard_size = 4}}, .load_from = folder});
    EXPECT_LE(
        (divided - trained({.config = two_copies, .load_from = folder})).abs().max().item<double>(),
        1e-4);
  });
}

TEST(ParallelismOfOneNode, AnAcceleratorTellsWhereItsProcessIs) {
  test::run_ranks(4, [] {
    const int rank = test::rank_of_this_process();
    const Accelerator accelerator(
        {.parallelism_config = ParallelismConfig{.dp_replicate_size = 2, .dp_shard_size = 2}});

    EXPECT_EQ(accelerator.data_parallel_rank(), rank / 2);
    EXPECT_EQ(accelerator.data_parallel_shard_rank(), rank % 2);
    EXPECT_EQ(accelerator.tensor_parallel_rank(), 0);
    EXPECT_EQ(accelerator.torch_device_mesh()->get_local_rank("dp"), rank);
    EXPECT_TRUE(accelerator.is_fsdp2());
    EXPECT_TRUE(accelerator.is_composable_parallelism_enabled());
    EXPECT_TRUE(accelerator.should_save_model());
    EXPECT_EQ(test::error_of([&] { (void)accelerator.pipeline_parallel_rank(); }).code(),
              ErrorCode::kUnsupported);
  });
}

TEST(ParallelismErrors, SizesThatDoNotMakeTheRanksAreRefusedOnAll) {
  test::run_ranks(4, [] {
    const Error error = test::error_of([] { (void)trained({.config = {{.dp_shard_size = 3}}}); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(),
                HasSubstr("make 3 processes (dp_shard_size 3), and the job has 4"));
  });
}

TEST(ParallelismErrors, RanksWithOtherSizesAreNamed) {
  test::run_ranks(4, [] {
    const ParallelismConfig own =
        test::rank_of_this_process() == 3
            ? ParallelismConfig{.dp_shard_size = 4}
            : ParallelismConfig{.dp_replicate_size = 2, .dp_shard_size = 2};
    const Error error = test::error_of([&] { (void)trained({.config = own}); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr("the plugin of rank 3 has "));
    PartialState().wait_for_everyone();
  });
}

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
