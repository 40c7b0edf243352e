// Accelerator::plan(): the options say what is planned, and what is planned is what runs.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <accel/accelerator.h>
#include <accel/big_model.h>
#include <accel/error.h>
#include <accel/plan.h>

#include "tests/support/error_of.h"
#include "tests/support/rank_group.h"
#include "tests/support/real_peak.h"
#include "tests/support/scratch_folder.h"

namespace accel::accelerator_plan_test {
namespace {

using at::Tensor;

struct LayerImpl : torch::nn::Module {
  LayerImpl() {
    register_module("up", up);
    register_module("down", down);
  }
  Tensor forward(const Tensor& x) { return x + down(at::relu(up(x))); }
  torch::nn::Linear up{64, 256}, down{256, 64};
};
TORCH_MODULE(Layer);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("layers", layers);
    register_module("head", head);
    for (int i = 0; i < 4; ++i) layers->push_back(Layer());
  }
  Tensor forward(Tensor x) {
    for (const auto& layer : *layers) x = layer->as<LayerImpl>()->forward(x);
    return head(x);
  }
  torch::nn::ModuleList layers;
  torch::nn::Linear head{64, 10};
};
TORCH_MODULE(Net);

constexpr std::int64_t kBatch = 512;

template <typename Model>
Tensor loss_of(Model& model) {
  return at::cross_entropy_loss(model(at::ones({kBatch, 64})), at::zeros({kBatch}, at::kLong));
}

RunPlan plan_of(const Accelerator& accelerator) {
  Net net;
  torch::optim::AdamW adamw(net->parameters());
  return accelerator.plan(*net, &adamw, [&] { return loss_of(net); });
}

// Plans, prepares, trains two steps, and plans again.
void expect_as_trained(const AcceleratorOptions& options) {
  Accelerator accelerator(options);
  Net net;
  torch::optim::AdamW adamw(net->parameters());
  const RunPlan plan = accelerator.plan(*net, &adamw, [&] { return loss_of(net); });
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  const int num_batches = accelerator.gradient_accumulation_steps();
  const std::function<void()> step = [&] {
    for (int batch = 0; batch < num_batches; ++batch) {
      const auto accumulating = accelerator.accumulate(model);
      accelerator.backward(loss_of(model));
    }
  };
  const std::function<void()> update = [&] { optimizer.step(); };
  const auto peak = static_cast<double>(test::real_peak(*net, update, step));
  EXPECT_NEAR(static_cast<double>(plan.memory.peak) / peak, 1, 0.02)
      << plan.memory.peak << " of " << peak;
  const RunPlan again = accelerator.plan(model, optimizer, [&] { return loss_of(model); });
  EXPECT_NEAR(static_cast<double>(again.memory.peak) / peak, 1, 0.02)
      << again.memory.peak << " of " << peak;
  accelerator.backward(loss_of(model));  // and goes on
  optimizer.step();
}

FullyShardedDataParallelPlugin layers_again() {
  FullyShardedDataParallelPlugin plugin;
  plugin.auto_wrap_policy = AutoWrapPolicy::kTransformerBasedWrap;
  plugin.transformer_cls_names_to_wrap = {{"Layer"}};
  plugin.activation_checkpointing = true;
  return plugin;
}

TEST(AcceleratorPlan, IsThePeakOfWhatIsTrained) {
  test::run_ranks(1, [] { expect_as_trained({}); });
}

TEST(AcceleratorPlan, HasMixedPrecisionAndAccumulationOfTheOptions) {
  test::run_ranks(
      1, [] { expect_as_trained({.mixed_precision = "bf16", .gradient_accumulation_steps = 2}); });
}

TEST(AcceleratorPlan, HasTheActivationsThatTheOptionsComputeAgain) {
  test::run_ranks(1, [] {
    AcceleratorOptions options;
    options.fsdp_plugin = layers_again();
    expect_as_trained(options);
    const RunPlan again = plan_of(Accelerator(options));
    options.fsdp_plugin->activation_checkpointing = false;
    EXPECT_LT(again.memory.activations, plan_of(Accelerator(options)).memory.activations);
  });
}

TEST(AcceleratorPlan, HasTheStrategyAndTheProcessesOfTheJob) {
  test::run_ranks(2, [] {
    const RunPlan copies = plan_of(Accelerator());
    EXPECT_EQ(copies.run.num_processes, 2);
    EXPECT_EQ(copies.run.num_machines, 1);
    EXPECT_EQ(copies.run.strategy, PlannedStrategy::kCopies);
    AcceleratorOptions options;
    options.fsdp_plugin.emplace().sharding_strategy = ShardingStrategy::kShardGradOp;
    const RunPlan shards = plan_of(Accelerator(options));
    EXPECT_EQ(shards.run.strategy, PlannedStrategy::kZero2);
    EXPECT_EQ(2 * shards.memory.parameters, copies.memory.parameters);
    EXPECT_EQ(shards.step.memory(copies.run).peak, copies.memory.peak);
  });
}

TEST(AcceleratorPlan, HasTheOptimizerOnTheDiskOfTheOptions) {
  const test::ScratchFolder folder;
  test::run_ranks(2, [&] {
    AcceleratorOptions options;
    options.deepspeed_plugin.emplace().zero_stage = 1;
    options.deepspeed_plugin->offload_optimizer_device = "nvme";
    options.deepspeed_plugin->offload_optimizer_nvme_path = folder.path();
    const RunPlan plan = plan_of(Accelerator(options));
    EXPECT_EQ(plan.run.strategy, PlannedStrategy::kZero1);
    EXPECT_TRUE(plan.run.optimizer_on_disk);
    EXPECT_EQ(plan.memory.disk, 8 * plan.step.num_parameters() / 2);
    options.deepspeed_plugin->step_in_backward = true;
    const Error error = test::error_of([&] { (void)plan_of(Accelerator(options)); });
    EXPECT_THAT(error.what(), testing::HasSubstr("step_in_backward"));
  });
}

TEST(AcceleratorPlan, TakesAModelWithoutMemory) {
  test::run_ranks(1, [] {
    const Accelerator accelerator;
    Net net = [] {
      const auto empty = init_empty_weights({.include_buffers = true});
      return Net();
    }();
    torch::optim::AdamW adamw(net->parameters());
    const RunPlan plan = accelerator.plan(*net, &adamw, [&] { return loss_of(net); });
    EXPECT_EQ(plan.memory.peak, plan_of(accelerator).memory.peak);
    EXPECT_TRUE(net->parameters()[0].is_meta());
  });
}

TEST(AcceleratorPlan, RefusesAModelThatSeveralRanksTrainAlready) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    Net net;
    torch::optim::AdamW adamw(net->parameters());
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    const Error error = test::error_of(
        [&] { (void)accelerator.plan(model, optimizer, [&] { return loss_of(model); }); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.what(), testing::HasSubstr("several ranks train already"));
    accelerator.wait_for_everyone();
  });
}

}  // namespace
}  // namespace accel::accelerator_plan_test
