// Gradients of a divided model that are summed where backward has written them, and what happens where some are elsewhere: the
// bits of flat gradients, which a rank that shares no memory for them makes all ranks use.

#include <cstdlib>
#include <string>
#include <vector>

#include <ATen/ops/arange.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <accel/accelerator.h>
#include <accel/random.h>

#include "tests/support/rank_group.h"

namespace accel::gradients_apart_test {
namespace {

enum class Blocks { kFree, kTakenByTheUser, kNone };

// Takes blocks of the size of a weight, as a hook of the user may.
struct Keeper {
  std::vector<at::Tensor> kept;
  void watch(const at::Tensor& weight) {
    weight.register_hook([this](const at::Tensor& gradient) {
      kept.clear();
      for (int i = 0; i < 8; ++i) kept.push_back(gradient.clone());
    });
  }
};

std::vector<at::Tensor> trained(ShardingStrategy strategy, Blocks blocks) {
  set_seed(8);
  torch::nn::Sequential net(torch::nn::Linear(64, 64),
                            torch::nn::Tanh(),
                            torch::nn::Linear(64, 64),
                            torch::nn::Linear(64, 5));
  AcceleratorOptions options;
  options.fsdp_plugin = FullyShardedDataParallelPlugin{};
  options.fsdp_plugin->sharding_strategy = strategy;
  Accelerator accelerator(options);
  ::setenv("DDP_DISABLE_COMM_MEM", blocks == Blocks::kNone ? "1" : "0", 1);
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.01));
  Keeper keeper;
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  const bool is_last = accelerator.process_index() + 1 == accelerator.num_processes();
  if (blocks == Blocks::kTakenByTheUser && is_last) keeper.watch(net->parameters()[2]);
  for (int step = 0; step < 4; ++step) {
    const at::Tensor own =
        (at::arange(256, at::kFloat).view({4, 64}) + 3 * step + accelerator.process_index()).sin();
    accelerator.backward((model(own) - 0.5).square().mean());
    optimizer.step();
    optimizer.zero_grad();
  }
  std::vector<at::Tensor> values;
  for (const at::Tensor& parameter : net->parameters())
    values.push_back(parameter.detach().clone());
  return values;
}

class GradientsApart : public ::testing::TestWithParam<int> {};

TEST_P(GradientsApart, GiveTheBitsOfFlatGradients) {
  test::run_ranks(GetParam(), [] {
    for (const ShardingStrategy strategy :
         {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp}) {
      const auto apart = trained(strategy, Blocks::kFree);
      const auto mixed = trained(strategy, Blocks::kTakenByTheUser);
      const auto flat = trained(strategy, Blocks::kNone);
      ASSERT_EQ(apart.size(), flat.size());
      for (std::size_t i = 0; i < flat.size(); ++i) {
        EXPECT_TRUE(apart[i].equal(flat[i])) << i;
        EXPECT_TRUE(mixed[i].equal(flat[i])) << i;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, GradientsApart, ::testing::Values(2, 3));

}  // namespace
}  // namespace accel::gradients_apart_test
