// Models without a parameter to train, teachers and references: with a plugin that divides models they come from rank 0 as
// the frozen parts of trained ones do.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/big_model.h>
#include <accel/error.h>

#include "tests/support/rank_group.h"

namespace accel::frozen_models_test {
namespace {

using ::testing::HasSubstr;

void freeze(torch::nn::Module& module) {
  for (at::Tensor& parameter : module.parameters()) parameter.set_requires_grad(false);
}

void fill(torch::nn::Module& module, double value) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : module.parameters()) parameter.fill_(value);
  for (at::Tensor& buffer : module.buffers()) buffer.fill_(value);
}

// Frozen; every value is the rank's number.
torch::nn::Sequential teacher(std::int64_t width = 3) {
  torch::nn::Sequential net(torch::nn::Linear(3, width), torch::nn::BatchNorm1d(width));
  freeze(*net);
  fill(*net, test::rank_of_this_process());
  return net;
}

bool is_all(const torch::nn::Module& module, double value) {
  for (const at::Tensor& parameter : module.parameters())
    if (!parameter.eq(value).all().item<bool>()) return false;
  for (const at::Tensor& buffer : module.buffers())
    if (!buffer.eq(value).all().item<bool>()) return false;
  return true;
}

// Whether every rank has the values of rank 0, or else those of its own.
bool is_sent(const AcceleratorOptions& options) {
  Accelerator accelerator(options);
  torch::nn::Sequential net = teacher();
  std::ignore = accelerator.prepare(net);
  if (is_all(*net, 0.0)) return test::rank_of_this_process() > 0;
  EXPECT_TRUE(is_all(*net, test::rank_of_this_process()));
  return false;
}

FullyShardedDataParallelPlugin plugin_of(ShardingStrategy strategy) {
  FullyShardedDataParallelPlugin plugin;
  plugin.sharding_strategy = strategy;
  return plugin;
}

TEST(FrozenModels, AreSentWhereModelsAreDivided) {
  test::run_ranks(2, [] {
    const bool is_second = test::rank_of_this_process() == 1;
    EXPECT_EQ(is_sent({.fsdp_plugin = plugin_of(ShardingStrategy::kFullShard)}), is_second);
    EXPECT_EQ(is_sent({.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 1}}), is_second);
    // As copies: the peers leave such a model to its owner.
    EXPECT_FALSE(is_sent({.fsdp_plugin = plugin_of(ShardingStrategy::kNoShard)}));
    EXPECT_FALSE(is_sent({}));
    auto own = plugin_of(ShardingStrategy::kFullShard);
    own.sync_module_states = false;
    EXPECT_FALSE(is_sent({.fsdp_plugin = own}));
  });
}

TEST(FrozenModels, ThatDifferAreRefusedByAllRanks) {
  test::run_ranks(2, [] {
    Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{}});
    try {
      std::ignore = accelerator.prepare(teacher(3 + test::rank_of_this_process()));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kShapeMismatch);
      EXPECT_THAT(error.message(), HasSubstr("'0.weight Float [4, 3] frozen'"));
    }
    accelerator.wait_for_everyone();
  });
}

// The values of rank 0 in a model that the others build without memory.
void expect_loaded(const std::function<void(torch::nn::Sequential&)>& in_scope,
                   const std::function<void(torch::nn::Sequential&)>& after_scope) {
  Accelerator accelerator(
      {.fsdp_plugin = FullyShardedDataParallelPlugin{.cpu_ram_efficient_loading = true}});
  torch::nn::Sequential net{nullptr};
  {
    const auto empty = init_empty_unless_main();
    net = torch::nn::Sequential(torch::nn::Linear(3, 3), torch::nn::BatchNorm1d(3));
    in_scope(net);
  }
  if (accelerator.is_main_process()) fill(*net, 2.0);
  after_scope(net);
  auto model = accelerator.prepare(net);
  EXPECT_TRUE(is_all(*net, 2.0));
  const at::NoGradGuard no_grad;
  EXPECT_EQ(model(at::ones({2, 3})).numel(), 6);
}

TEST(FrozenModels, AreLoadedByTheMainProcessAlone) {
  test::run_ranks(2, [] {
    const auto freeze_all = [](torch::nn::Sequential& net) { freeze(*net); };
    const auto nothing = [](torch::nn::Sequential&) {};
    expect_loaded(nothing, freeze_all);
    expect_loaded(freeze_all, nothing);
  });
}

// It lies in memory that cannot be written to, and is the same on all ranks already.
TEST(FrozenModels, MayHaveBeenTrainedBefore) {
  test::run_ranks(2, [] {
    Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{}});
    torch::nn::Sequential net(torch::nn::Linear(3, 3));
    fill(*net, 0.25);
    {
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      accelerator.backward(model(at::ones({2, 3})).sum());
      optimizer.step();
    }
    accelerator.free_memory();
    const at::Tensor trained = net->parameters()[0].detach().clone();
    freeze(*net);
    std::ignore = accelerator.prepare(net);
    EXPECT_TRUE(net->parameters()[0].equal(trained));
    accelerator.wait_for_everyone();
  });
}

}  // namespace
}  // namespace accel::frozen_models_test
