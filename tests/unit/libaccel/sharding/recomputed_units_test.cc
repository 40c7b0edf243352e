// activation_checkpointing of FSDP: the losses and weights of a run that keeps its activations, to the bit, in less memory.

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>

#include <accel/accelerator.h>
#include <accel/activation_checkpoint.h>
#include <accel/random.h>

#include "libaccel/interception/kernel_scope.h"
#include "tests/support/error_of.h"
#include "tests/support/rank_group.h"

namespace accel::recomputed_units_test {
namespace {

namespace nn = torch::nn;
using test::error_of;
using ::testing::HasSubstr;

struct BlockImpl : nn::Module {
  BlockImpl()
      : norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({8})))),
        up(register_module("up", nn::Linear(8, 32))),
        down(register_module("down", nn::Linear(32, 8))),
        dropout(register_module("dropout", nn::Dropout(0.2))),
        batch_norm(register_module("batch_norm", nn::BatchNorm1d(8))) {}
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor wide = up->forward(norm->forward(x)).tanh();
    storages.push_back(wide.storage().getWeakStorageImpl());
    at::Tensor sum = dropout->forward(down->forward(wide)).to(at::kFloat);
    sum += x;
    return batch_norm->forward(sum);
  }
  nn::LayerNorm norm;
  nn::Linear up;
  nn::Linear down;
  nn::Dropout dropout;
  nn::BatchNorm1d batch_norm;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages;
};
TORCH_MODULE(Block);

struct NetImpl : nn::Module {
  NetImpl()
      : first(register_module("first", nn::Linear(6, 8))),
        head(register_module("head", nn::Linear(8, 2))) {
    for (int i = 0; i < 3; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), Block()));
  }
  at::Tensor forward(const at::Tensor& input) {
    at::Tensor x = first->forward(input);
    for (Block& block : blocks) x = block->forward(x);
    return head->forward(x);
  }
  std::int64_t num_live_activations() const {
    std::int64_t count = 0;
    for (const Block& block : blocks) {
      for (const auto& storage : block->storages)
        count += static_cast<std::int64_t>(storage.lock() != nullptr);
    }
    return count;
  }
  nn::Linear first;
  std::vector<Block> blocks;
  nn::Linear head;
};
TORCH_MODULE(Net);

FullyShardedDataParallelPlugin by_blocks(bool recomputes,
                                         ShardingStrategy strategy = ShardingStrategy::kFullShard) {
  return {.sharding_strategy = strategy,
          .auto_wrap_policy = AutoWrapPolicy::kTransformerBasedWrap,
          .transformer_cls_names_to_wrap = {{"Block"}},
          .activation_checkpointing = recomputes};
}

// Counts products, below autograd.
struct Products final : interception::KernelHandler {
  bool run(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*) override {
    count += static_cast<std::int64_t>(op.operator_name().name == "aten::addmm");
    return false;
  }
  std::int64_t count = 0;
};

struct Trained {
  std::vector<at::Tensor> tensors;  // losses, parameters, buffers, numbers drawn at the end
  std::int64_t num_live = 0;        // activations, between a forward and its backward
  std::int64_t num_products = 0;    // of a layer with a bias
};

Trained trained(AcceleratorOptions options, FullyShardedDataParallelPlugin plugin) {
  options.cpu = true;
  options.fsdp_plugin = std::move(plugin);
  Accelerator accelerator(options);
  set_seed(3);
  Net net;
  auto [model, optimizer] = accelerator.prepare(
      net,
      std::shared_ptr<torch::optim::Optimizer>(std::make_shared<torch::optim::AdamW>(
          net->parameters(), torch::optim::AdamWOptions(0.01))));
  set_seed(5 + static_cast<std::uint64_t>(accelerator.process_index()));
  Trained result;
  Products products;
  const interception::KernelScope scope(products);
  for (int step = 0; step < 6; ++step) {
    auto accumulating = accelerator.accumulate(model);
    const at::Tensor loss = model(at::randn({4, 6})).square().mean();
    result.num_live = net->num_live_activations();
    accelerator.backward(loss);
    if (accelerator.sync_gradients()) accelerator.clip_grad_norm_(model->parameters(), 0.5);
    optimizer.step();
    optimizer.zero_grad();
    result.tensors.push_back(loss.detach());
  }
  result.num_products = products.count;
  for (const at::Tensor& parameter : net->parameters())
    result.tensors.push_back(parameter.detach().clone());
  for (const at::Tensor& buffer : net->buffers()) result.tensors.push_back(buffer.clone());
  result.tensors.push_back(at::rand({4}));
  return result;
}

void expect_same_tensors(const Trained& kept, const Trained& recomputed) {
  ASSERT_EQ(kept.tensors.size(), recomputed.tensors.size());
  for (std::size_t i = 0; i < kept.tensors.size(); ++i)
    EXPECT_TRUE(kept.tensors[i].equal(recomputed.tensors[i])) << i;
}

void expect_same_training(const AcceleratorOptions& options = {},
                          ShardingStrategy strategy = ShardingStrategy::kFullShard) {
  const Trained kept = trained(options, by_blocks(false, strategy));
  const Trained recomputed = trained(options, by_blocks(true, strategy));
  expect_same_tensors(kept, recomputed);
  EXPECT_EQ(kept.num_live, 3);
  EXPECT_EQ(recomputed.num_live, 0);
}

TEST(RecomputedUnits, OfOneProcessTrainToTheSameBits) {
  test::run_ranks(1, [] { expect_same_training(); });
}

TEST(RecomputedUnits, OfADividedModelTrainToTheSameBits) {
  test::run_ranks(2, [] { expect_same_training(); });
}

TEST(RecomputedUnits, OfModelsThatEachRankHasWholeTrainToTheSameBits) {
  test::run_ranks(2, [] {
    expect_same_training({}, ShardingStrategy::kShardGradOp);
    expect_same_training({}, ShardingStrategy::kNoShard);
  });
}

TEST(RecomputedUnits, TrainToTheSameBitsInBf16AndWithAccumulation) {
  test::run_ranks(2, [] {
    expect_same_training(
        {.mixed_precision = PrecisionType::kBf16, .gradient_accumulation_steps = 2});
  });
}

TEST(RecomputedUnits, AreAskedForByTheVariable) {
  test::run_ranks(1, [] {
    ::setenv("FSDP_ACTIVATION_CHECKPOINTING", "true", 1);
    FullyShardedDataParallelPlugin plugin = by_blocks(true);
    plugin.activation_checkpointing.reset();
    EXPECT_EQ(trained({}, plugin).num_live, 0);
    ::unsetenv("FSDP_ACTIVATION_CHECKPOINTING");
  });
}

TEST(RecomputedUnits, WhoseProductsAreKeptTrainToTheSameBits) {
  test::run_ranks(2, [] {
    for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kNoShard}) {
      FullyShardedDataParallelPlugin plugin = by_blocks(true, strategy);
      plugin.recompute_granularity = RecomputeGranularity::kSelective;
      expect_same_tensors(trained({}, by_blocks(false, strategy)), trained({}, plugin));
    }
  });
}

TEST(RecomputedUnits, KeepProductsWhereTheVariableAsksForIt) {
  test::run_ranks(1, [] {
    FullyShardedDataParallelPlugin plugin = by_blocks(true);
    const std::int64_t full = trained({}, plugin).num_products;
    ::setenv("ACCEL_FSDP_RECOMPUTE_GRANULARITY", "selective", 1);
    const std::int64_t selective = trained({}, plugin).num_products;
    ::unsetenv("ACCEL_FSDP_RECOMPUTE_GRANULARITY");

    EXPECT_EQ(selective, trained({}, by_blocks(false)).num_products);
    EXPECT_GT(full, selective);
  });
}

TEST(RecomputedUnits, AForwardOfTheModuleItselfIsRefused) {
  test::run_ranks(1, [] {
    Accelerator accelerator(AcceleratorOptions{.cpu = true, .fsdp_plugin = by_blocks(true)});
    Net net;
    auto model = accelerator.prepare(net);

    const Error error = error_of([&] {
      accelerator.backward(model->forward(at::randn({4, 6})).square().mean());
    });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr("activation_checkpointing is set"));
  });
}

TEST(RecomputedUnits, APreparedModelIsRefusedInAPart) {
  test::run_ranks(1, [] {
    Accelerator accelerator(AcceleratorOptions{.cpu = true});
    auto model = accelerator.prepare(nn::Linear(4, 4));

    const Error error = error_of([&model] {
      (void)checkpoint_activations([&model](const at::Tensor& x) { return model(x); },
                                   at::randn({2, 4}));
    });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.remedy(), HasSubstr("inside of the model's own forward"));
  });
}

}  // namespace
}  // namespace accel::recomputed_units_test
