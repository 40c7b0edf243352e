// cpu_ram_efficient_loading: rank 0 alone has the model before prepare().

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <accel/accelerator.h>
#include <accel/big_model.h>
#include <accel/checkpoint.h>
#include <accel/error.h>
#include <accel/random.h>

#include "libaccel/engine/shm/memory/node_identity.h"
#include "tests/support/fake_nodes.h"
#include "tests/support/peak_memory.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::main_only_loading_test {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kMiB = 1 << 20;

// The node of a rank is its number, divided.
void take_node(int ranks_per_node) {
  const std::string node = "node" + std::to_string(test::rank_of_this_process() / ranks_per_node);
  ::setenv(shm::kTestNodeVariable, node.c_str(), 1);
}

// Everything that has to get its values from rank 0: divided, tied, frozen, ignored, buffers.
struct NetImpl : torch::nn::Module {
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear first{nullptr}, ignored{nullptr}, frozen{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  at::Tensor shift;  // its own, not registered

  NetImpl() {
    table = register_module("table", torch::nn::Embedding(11, 24));
    first = register_module("first", torch::nn::Linear(24, 61));
    norm = register_module("norm", torch::nn::BatchNorm1d(61));
    ignored = register_module("ignored", torch::nn::Linear(61, 24));
    frozen = register_module("frozen", torch::nn::Linear(24, 24));
    register_parameter("head", table->weight);
    register_parameter("nothing", torch::empty({0}));
    for (at::Tensor& parameter : frozen->parameters()) parameter.set_requires_grad(false);
    shift = torch::arange(24).to(torch::kFloat).div(24);
  }
  at::Tensor forward(const at::Tensor& tokens) {
    const at::Tensor hidden = norm(first(table(tokens))).tanh();
    return (frozen(ignored(hidden)) + shift.to(hidden.scalar_type())).matmul(table->weight.t());
  }
};
TORCH_MODULE(Net);

FullyShardedDataParallelPlugin plugin_of(ShardingStrategy strategy, bool is_main_only) {
  FullyShardedDataParallelPlugin plugin;
  plugin.sharding_strategy = strategy;
  plugin.auto_wrap_policy = AutoWrapPolicy::kTransformerBasedWrap;
  plugin.transformer_cls_names_to_wrap = {{"Linear", "Embedding"}};
  plugin.ignored_modules = std::vector<std::string>{"ignored"};
  plugin.cpu_ram_efficient_loading = is_main_only;
  return plugin;
}

at::Tensor flat(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& tensor : tensors)
    parts.push_back(tensor.detach().flatten().to(at::kDouble));
  return at::cat(parts);
}

// Parameters and buffers after some steps. fill: gives a model its weights, on whom it concerns.
at::Tensor trained(const FullyShardedDataParallelPlugin& plugin,
                   const std::function<void(Net&)>& fill = {}) {
  Accelerator accelerator({.fsdp_plugin = plugin});
  set_seed(3);
  Net net{nullptr};
  {
    const auto empty = init_empty_unless_main();
    const bool should_be = *plugin.cpu_ram_efficient_loading && !accelerator.is_main_process();
    EXPECT_EQ(empty.is_active(), should_be);
    net = Net();
    EXPECT_EQ(net->first->weight.is_meta(), should_be);
    if (fill) fill(net);
  }
  torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(0.01));
  auto [model, optimizer] = accelerator.prepare(net, adam);
  for (int step = 0; step < 3; ++step) {
    const at::Tensor tokens =
        (at::arange(6, at::kLong) * 3 + step + accelerator.process_index()) % 11;
    accelerator.backward((model(tokens) - 0.5).square().mean());
    optimizer.step();
    optimizer.zero_grad();
  }
  const at::Tensor result = at::cat({flat(net->parameters()), flat(net->buffers())});
  accelerator.wait_for_everyone();  // others may still read this rank's shards
  return result;
}

void expect_equal_training(FullyShardedDataParallelPlugin plugin) {
  plugin.cpu_ram_efficient_loading = true;
  const at::Tensor main_only = trained(plugin);
  plugin.cpu_ram_efficient_loading = false;
  const at::Tensor everywhere = trained(plugin);
  EXPECT_TRUE(main_only.equal(everywhere))
      << "differ by up to " << (main_only - everywhere).abs().max().item<double>();
}

TEST(MainOnlyLoading, OnOneNodeTrainsToTheBitsOfLoadingEverywhere) {
  test::run_ranks(3, [] { expect_equal_training(plugin_of(ShardingStrategy::kFullShard, true)); });
}

TEST(MainOnlyLoading, OverNodesThatPageTrainsToTheSameBits) {
  test::run_ranks(2, [] {
    take_node(1);
    expect_equal_training(plugin_of(ShardingStrategy::kFullShard, true));
  });
}

TEST(MainOnlyLoading, OverNodesThatKeepCopiesTrainsToTheSameBits) {
  test::run_ranks(2, [] {
    take_node(1);
    expect_equal_training(plugin_of(ShardingStrategy::kShardGradOp, true));
  });
}

TEST(MainOnlyLoading, WithReplicasTrainsToTheSameBits) {
  test::run_ranks(4, [] {
    const int rank = test::rank_of_this_process();
    test::be_on_node(rank / 2, 2, rank % 2, 2);
    expect_equal_training(plugin_of(ShardingStrategy::kHybridShard, true));
  });
}

TEST(MainOnlyLoading, WithMastersTrainsToTheSameBits) {
  test::run_ranks(2, [] {
    auto plugin = plugin_of(ShardingStrategy::kFullShard, true);
    plugin.mixed_precision_policy =
        MixedPrecisionPolicy{.param_dtype = at::kBFloat16, .buffer_dtype = at::kBFloat16};
    plugin.ignored_modules.reset();
    expect_equal_training(plugin);
  });
}

// ---- weights from a file

TEST(MainOnlyLoading, AFileIsReadByTheMainProcessAloneAndComparedByTheOthers) {
  const test::ScratchFolder folder;
  if (test::rank_of_this_process() < 0) {
    set_seed(7);
    save_model(*Net(), folder.path());
  }
  test::run_ranks(2, [&] {
    const auto fill = [&](Net& net) { load_checkpoint_in_model(*net, folder.path()); };
    const at::Tensor main_only = trained(plugin_of(ShardingStrategy::kFullShard, true), fill);
    const at::Tensor everywhere = trained(plugin_of(ShardingStrategy::kFullShard, false), fill);
    EXPECT_TRUE(main_only.equal(everywhere));

    const Accelerator accelerator({.fsdp_plugin = plugin_of(ShardingStrategy::kFullShard, true)});
    const auto empty = init_empty_unless_main();
    torch::nn::Sequential other(torch::nn::Linear(3, 3));
    EXPECT_THROW(load_checkpoint_in_model(*other, folder.path(), {.strict = true}), Error);
  });
}

TEST(MainOnlyLoading, WithoutItAnEmptyModelGetsMemoryFromTheFile) {
  const test::ScratchFolder folder;
  Net saved;
  save_model(*saved, folder.path());
  Net net{nullptr};
  {
    const auto empty = init_empty_weights();
    net = Net();
  }

  load_checkpoint_in_model(*net, folder.path());

  EXPECT_TRUE(flat(net->parameters()).equal(flat(saved->parameters())));
}

// ---- memory

// 24 layers of 16 MiB.
std::shared_ptr<torch::nn::Module> layers() {
  auto module = std::make_shared<torch::nn::Module>();
  for (int i = 0; i < 24; ++i)
    module->register_module(
        "layer" + std::to_string(i),
        torch::nn::Linear(torch::nn::LinearOptions(2048, 2048).bias(false)).ptr());
  return module;
}

// Rank 1 of 2 has its half, 192 MiB, and one parameter at a time, 16 MiB. The collectives' own memory, connections and code
// that is used for the first time do not depend on the model and are allowed 96 MiB. The model has 384.
// shared: bytes that the node has once, and that count for every rank which maps them to read, besides its half to write.
// A rank of one node that held the model, too, would have 384 MiB more.
void expect_small_peak(std::int64_t shared) {
  Accelerator accelerator(
      {.fsdp_plugin = FullyShardedDataParallelPlugin{.cpu_ram_efficient_loading = true}});
  accelerator.wait_for_everyone();
  const test::PeakMemory peak;
  std::shared_ptr<torch::nn::Module> net;
  {
    const auto empty = init_empty_unless_main();
    net = layers();
  }
  const auto model = accelerator.prepare(net);
  if (accelerator.is_main_process()) {
    EXPECT_GT(peak.growth_bytes(), 384 * kMiB) << "the measure does not see memory";
  } else {
    EXPECT_LT(peak.growth_bytes(), shared + (192 + 16 + 96) * kMiB) << peak.report();
  }
  accelerator.wait_for_everyone();
}

TEST(MainOnlyLoading, TheOtherRanksOfANodeHoldNothingBesideTheSharedCopy) {
  test::run_ranks(2, [] { expect_small_peak(384 * kMiB); });
}

TEST(MainOnlyLoading, RanksOfOtherNodesNeverHoldTheModel) {
  test::run_ranks(2, [] {
    take_node(1);
    expect_small_peak(0);
  });
}

// ---- what is refused

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_FALSE(error.remedy().empty());
    return error.message();
  }
  return "nothing was thrown";
}

// What prepare() says when the ranks from `first_empty` on have no memory.
std::string refusal_of(const AcceleratorOptions& options, int first_empty) {
  Accelerator accelerator(options);
  std::optional<EmptyWeights> empty;
  if (accelerator.process_index() >= first_empty) empty.emplace(InitEmptyWeightsOptions{});
  torch::nn::Sequential net(torch::nn::Linear(2, 3));
  empty.reset();
  return refusal([&] { std::ignore = accelerator.prepare(net); });
}

TEST(MainOnlyLoading, OneProcessRefusesAModelWithoutMemoryByName) {
  EXPECT_THAT(refusal_of({}, 0), HasSubstr("'0.weight' and 1 more have no memory"));
}

TEST(MainOnlyLoading, EveryRankRefusesEmptyModelsThatNobodyWouldFill) {
  test::run_ranks(2, [] {
    EXPECT_THAT(refusal_of({}, 1), HasSubstr("on rank 1, and only sharding gives ranks"));
    AcceleratorOptions options{.fsdp_plugin = FullyShardedDataParallelPlugin{}};
    EXPECT_THAT(refusal_of(options, 0), HasSubstr("on rank 0, and its values are those"));
    options.fsdp_plugin->sync_module_states = false;
    EXPECT_THAT(refusal_of(options, 1), HasSubstr("sync_module_states is false"));
    options.fsdp_plugin =
        FullyShardedDataParallelPlugin{.sharding_strategy = ShardingStrategy::kNoShard};
    EXPECT_THAT(refusal_of(options, 1), HasSubstr("only sharding gives ranks"));
  });
}

TEST(MainOnlyLoading, NeedsAnAccelerator) {
  PartialState::reset();
  EXPECT_THROW(std::ignore = init_empty_unless_main(), Error);
}

}  // namespace
}  // namespace accel::main_only_loading_test
