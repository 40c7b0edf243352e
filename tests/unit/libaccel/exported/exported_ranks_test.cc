// Exported models under DDP and FULL_SHARD: the same losses as one process on the batches of all ranks.

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/exported_model.h>
#include <accel/fsdp.h>
#include <accel/random.h>

#include "libaccel/engine/sharding/wrap_policy.h"
#include "libaccel/tensors/unique_parameters.h"
#include "tests/support/exported_archive.h"
#include "tests/support/rank_group.h"

namespace accel::exported_ranks_test {
namespace {

using test::exported_model;
using test::run_ranks;

constexpr int kSteps = 4;

at::Tensor ids() {
  return at::arange(16).view({4, 4}) * 7 % 16;
}

std::vector<float> losses_of_one_process() {
  ExportedModel net(exported_model("blocks"));
  net->eval();
  torch::optim::SGD sgd(unique_parameters(net->parameters()), torch::optim::SGDOptions(0.5));
  std::vector<float> losses;
  for (int step = 0; step < kSteps; ++step) {
    sgd.zero_grad();
    const at::Tensor loss = net(ids(), ids());
    loss.backward();
    sgd.step();
    losses.push_back(loss.item<float>());
  }
  return losses;
}

void train_as_one(const AcceleratorOptions& options) {
  Accelerator accelerator(options);
  ExportedModel net(exported_model("blocks"));
  net->eval();  // dropout draws other numbers on other ranks
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.5));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const std::vector<float> expected = losses_of_one_process();
  const at::Tensor mine = ids().narrow(0, accelerator.process_index() * 2, 2);
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor loss = model(ExportedInputs{{"ids", mine}, {"labels", mine}});
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    const float mean = accelerator.reduce(loss.detach(), Reduction::kMean).item<float>();
    // A loss is a mean over 16 tokens, summed in two halves: roundings of 2^-24 in each of at most 16 additions, and those of
    // the steps before in parameters that a rate of 0.5 moves.
    EXPECT_NEAR(mean, expected[step], 16 * (step + 1) * std::ldexp(expected[step], -24));
  }
  EXPECT_EQ(net->named_buffers()["calls"].item<std::int64_t>(), kSteps);
  accelerator.end_training();
}

TEST(ExportedRanks, TrainUnderDdpAsOneProcess) {
  run_ranks(2, [] { train_as_one({}); });
}

TEST(ExportedRanks, TrainUnderFullShardAsOneProcess) {
  run_ranks(2, [] {
    AcceleratorOptions options;
    options.fsdp_plugin.emplace().sharding_strategy = ShardingStrategy::kFullShard;
    train_as_one(options);
  });
}

TEST(ExportedRanks, AreWrappedByPythonsClasses) {
  run_ranks(2, [] {
    AcceleratorOptions options;
    FullyShardedDataParallelPlugin& plugin = options.fsdp_plugin.emplace();
    plugin.sharding_strategy = ShardingStrategy::kFullShard;
    plugin.auto_wrap_policy = AutoWrapPolicy::kTransformerBasedWrap;
    plugin.transformer_cls_names_to_wrap = {"Block"};
    train_as_one(options);
  });
}

std::int64_t g_num_norms = 0;

// Losses of a training on two ranks; how many normalisations each of its backwards has computed.
std::pair<std::vector<float>, std::int64_t> trained_by_blocks(bool recomputes) {
  Accelerator accelerator(
      AcceleratorOptions{.fsdp_plugin = FullyShardedDataParallelPlugin{
                             .auto_wrap_policy = AutoWrapPolicy::kTransformerBasedWrap,
                             .transformer_cls_names_to_wrap = {{"Block"}},
                             .activation_checkpointing = recomputes}});
  ExportedModel net(exported_model("blocks"));
  set_seed(2);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.5));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const at::Tensor mine = ids().narrow(0, accelerator.process_index() * 2, 2);
  std::vector<float> losses;
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor loss = model(ExportedInputs{{"ids", mine}, {"labels", mine}});
    g_num_norms = 0;
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    losses.push_back(loss.item<float>());
  }
  return {losses, g_num_norms};
}

TEST(ExportedRanks, ComputeTheirBlocksAgainToTheSameBits) {
  run_ranks(2, [] {
    const auto callback = at::addGlobalCallback(at::RecordFunctionCallback(
        [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
          if (std::string_view(function.name()) == "aten::native_layer_norm") ++g_num_norms;
          return nullptr;
        }));
    const auto [kept, none] = trained_by_blocks(false);
    const auto [recomputed, norms] = trained_by_blocks(true);
    at::removeCallback(callback);
    EXPECT_EQ(recomputed, kept);
    EXPECT_EQ(none, 0);
    EXPECT_EQ(norms, 2) << "one in each block";
  });
}

// What it gets, in place of an archive.
struct ByNameImpl : torch::nn::Module {
  ByNameImpl() { weight = register_parameter("weight", at::ones({4})); }
  at::Tensor forward(const ExportedInputs& inputs) {
    for (const auto& [name, value] : inputs.values)
      seen.push_back(value.isTensor() ? value.toTensor().scalar_type() : at::kByte);
    return (inputs.values.front().second.toTensor() * weight).sum();
  }
  at::Tensor weight;
  std::vector<at::ScalarType> seen;
};

TEST(ExportedRanks, GetInputsByNameInTheDtypeOfTheParameters) {
  run_ranks(2, [] {
    AcceleratorOptions options;
    options.fsdp_plugin.emplace().mixed_precision_policy = "bf16";
    Accelerator accelerator(options);
    const auto net = std::make_shared<ByNameImpl>();
    const auto model = accelerator.prepare(net);
    const ExportedInputs inputs{{"x", at::ones({4})}, {"ids", at::ones({4}, at::kLong)}, {"n", 3}};
    accelerator.backward(model(inputs));
    EXPECT_THAT(net->seen, ::testing::ElementsAre(at::kBFloat16, at::kLong, at::kByte));
    EXPECT_EQ(inputs.values.front().second.toTensor().scalar_type(), at::kFloat);
    accelerator.end_training();
  });
}

TEST(WrapPolicy, PutsExportedModulesTogetherByTheirPythonClass) {
  ExportedModel net(exported_model("blocks"));
  sharding::FsdpSettings settings;
  settings.wrap = AutoWrapPolicy::kTransformerBasedWrap;
  settings.transformer_classes = {"Block"};
  const auto groups = sharding::wrap_groups(*net, settings);
  const auto group = [&](const char* name) {
    return groups.at(net->named_parameters()[name].unsafeGetTensorImpl());
  };
  EXPECT_EQ(group("blocks.0.up.weight"), group("blocks.0.norm.bias"));
  EXPECT_NE(group("blocks.0.up.weight"), group("blocks.1.up.weight"));
  EXPECT_NE(group("blocks.0.up.weight"), group("embed.weight"));
}

TEST(WrapPolicy, WrapsNoListOfExportedModules) {
  ExportedModel net(exported_model("blocks"));
  sharding::FsdpSettings settings;
  settings.wrap = AutoWrapPolicy::kSizeBasedWrap;
  settings.min_num_params = 500;  // both blocks together have 592
  const auto groups = sharding::wrap_groups(*net, settings);
  const auto group = [&](const char* name) {
    return groups.at(net->named_parameters()[name].unsafeGetTensorImpl());
  };
  EXPECT_EQ(group("blocks.0.up.weight"), group("embed.weight"));  // of the root
}

}  // namespace
}  // namespace accel::exported_ranks_test
