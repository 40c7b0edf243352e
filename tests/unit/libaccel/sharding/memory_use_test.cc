// The library's own counters against the formulas of docs/guides/sharding.md, to 2 %: what is more is padding of units and pages.

#include <cstdlib>
#include <functional>
#include <optional>
#include <string>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/memory_use.h>

#include "libaccel/engine/shm/memory/node_identity.h"
#include "tests/support/rank_group.h"

namespace accel::memory_use_test {
namespace {

constexpr int kLayers = 6;
constexpr std::int64_t kWidth = 384;
constexpr std::int64_t kUnit = kWidth * kWidth + kWidth;  // elements of a layer
constexpr std::int64_t kParameters = kLayers * kUnit;
constexpr int kRanks = 2;

FullyShardedDataParallelPlugin layer_units(
    ShardingStrategy strategy = ShardingStrategy::kFullShard) {
  FullyShardedDataParallelPlugin plugin;
  plugin.sharding_strategy = strategy;
  plugin.auto_wrap_policy = AutoWrapPolicy::kTransformerBasedWrap;
  plugin.transformer_cls_names_to_wrap = {{"Linear"}};
  return plugin;
}

AcceleratorOptions sharded(FullyShardedDataParallelPlugin plugin) {
  AcceleratorOptions options;
  options.fsdp_plugin = std::move(plugin);
  return options;
}

// After two steps, of which the second's gradients are still there.
MemoryUse used(const AcceleratorOptions& options) {
  Accelerator accelerator(options);
  torch::nn::Sequential net;
  for (int i = 0; i < kLayers; ++i) net->push_back(torch::nn::Linear(kWidth, kWidth));
  torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(0.01));
  auto [model, optimizer] = accelerator.prepare(net, adam);
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    accelerator.backward(model(at::ones({2, kWidth})).mean());
    optimizer.step();
  }
  const MemoryUse use = memory_use(model, optimizer);
  accelerator.wait_for_everyone();
  return use;
}

void expect_near(std::int64_t bytes, std::int64_t formula, const char* what) {
  EXPECT_GE(bytes, formula) << what;
  EXPECT_LE(static_cast<double>(bytes), 1.02 * static_cast<double>(formula)) << what;
}

TEST(MemoryUse, IsThatOfTheFormulasOnOneNode) {
  test::run_ranks(kRanks, [] {
    const MemoryUse copies = used({});
    EXPECT_EQ(copies.parameters, 4 * kParameters);
    expect_near(copies.gradients, 4 * kParameters, "gradients of copies");
    EXPECT_EQ(copies.optimizer, 8 * kParameters);
    EXPECT_EQ(copies.peak_filling + copies.peak_paged + copies.masters, 0);

    const MemoryUse shards = used(sharded(layer_units()));
    expect_near(shards.parameters, 4 * kParameters / kRanks, "parameters");
    expect_near(shards.gradients, 4 * kParameters / kRanks, "gradients");
    expect_near(shards.optimizer, 8 * kParameters / kRanks, "optimizer");
    expect_near(shards.peak_filling, 4 * kUnit, "the unit that is being filled");
    EXPECT_EQ(shards.filling, 0) << "after the backward";
    EXPECT_EQ(shards.peak_paged, 0);

    AcceleratorOptions zero1;
    zero1.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 1};
    zero1.ddp.gradient_as_bucket_view = true;
    const MemoryUse stage1 = used(zero1);
    expect_near(stage1.parameters, 4 * kParameters / kRanks, "parameters of ZeRO-1");
    expect_near(stage1.gradients, 4 * kParameters, "gradients of ZeRO-1");
    expect_near(stage1.optimizer, 8 * kParameters / kRanks, "optimizer of ZeRO-1");

    FullyShardedDataParallelPlugin bf16 = layer_units();
    bf16.mixed_precision_policy = "bf16";
    const MemoryUse rounded = used(sharded(std::move(bf16)));
    expect_near(rounded.parameters, 2 * kParameters / kRanks, "parameters in bf16");
    expect_near(rounded.masters, 4 * kParameters / kRanks, "masters");
    expect_near(rounded.optimizer, 8 * kParameters / kRanks, "optimizer of masters");
    expect_near(rounded.peak_filling, 2 * kUnit, "the unit that is being filled, in bf16");
  });
}

TEST(MemoryUse, IsThatOfTheFormulasOverNodes) {
  test::run_ranks(kRanks, [] {
    const std::string node = "node" + std::to_string(test::rank_of_this_process());
    ::setenv(shm::kTestNodeVariable, node.c_str(), 1);
    const MemoryUse shards = used(sharded(layer_units()));
    expect_near(shards.parameters, 4 * kParameters / kRanks, "parameters");
    expect_near(shards.peak_paged, 3 * 4 * kUnit, "three units");
    EXPECT_EQ(shards.paged, 0) << "after the step";
    expect_near(shards.optimizer, 8 * kParameters / kRanks, "optimizer");

    const MemoryUse whole = used(sharded(layer_units(ShardingStrategy::kShardGradOp)));
    expect_near(whole.parameters, 4 * kParameters, "whole parameters");
    expect_near(whole.gradients, 4 * kParameters / kRanks, "gradients of shards");
    EXPECT_EQ(whole.peak_paged, 0);
  });
}

TEST(MemoryUse, FrozenParametersAndBuffersAreWhole) {
  test::run_ranks(kRanks, [] {
    Accelerator accelerator(sharded({}));
    torch::nn::Linear net(8, 8);
    net->bias.set_requires_grad(false);
    net->register_buffer("mean", at::ones({6}));
    EXPECT_EQ(memory_use(accelerator.prepare(net)).whole, 4 * (8 + 6));
  });
}

class OwnAdam final : public torch::optim::AdamW {
 public:
  using AdamW::AdamW;
};

TEST(MemoryUse, OfStatesThatAClassOfTheUsersOwnMayKeepAnywhereIsRefusedByName) {
  test::run_ranks(1, [] {
    Accelerator accelerator;
    torch::nn::Linear net(8, 8);
    auto [model, optimizer] =
        accelerator.prepare(net, std::make_shared<OwnAdam>(net->parameters()));
    try {
      std::ignore = memory_use(model, optimizer);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_THAT(error.message(), ::testing::HasSubstr("OwnAdam"));
      EXPECT_THAT(error.remedy(), ::testing::HasSubstr("memory_use(model)"));
    }
    EXPECT_EQ(memory_use(model).parameters, 4 * (8 * 8 + 8));
    auto lbfgs = accelerator.prepare(std::make_shared<torch::optim::LBFGS>(net->parameters()));
    EXPECT_EQ(memory_use(model, lbfgs).optimizer, 0);
  });
}

}  // namespace
}  // namespace accel::memory_use_test
