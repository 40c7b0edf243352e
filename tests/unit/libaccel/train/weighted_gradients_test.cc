// backward() with weights: ranks with micro-batches of any length have the gradient of the mean over all tokens, which one process
// computes of one large batch.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/random.h>

#include "tests/support/error_of.h"
#include "tests/support/rank_group.h"

namespace accel::weighted_gradients_test {
namespace {

using ::testing::HasSubstr;
using torch::nn::Linear;
using torch::optim::SGD;
using torch::optim::SGDOptions;

constexpr int kSteps = 3;
constexpr int kMicroBatches = 2;  // of a rank, in a step
constexpr double kRate = 0.25;

struct NetImpl : torch::nn::Module {
  Linear first{nullptr};
  Linear second{nullptr};

  NetImpl() {
    first = register_module("first", Linear(4, 8));
    second = register_module("second", Linear(8, 1));
  }
  at::Tensor forward(const at::Tensor& input) { return second(first(input).tanh()); }
};
TORCH_MODULE(Net);

Net seeded_net() {
  set_seed(5);
  return Net();
}

// Of 0 to 9 tokens, unlike on neighbouring ranks and micro-batches; rank 0 has none at first.
std::int64_t length_of(int step, int rank, int micro_batch) {
  return (7 * step + 5 * rank + 3 * micro_batch) % 10;
}

// [n, 4]
at::Tensor tokens(int step, int rank, int micro_batch) {
  const std::int64_t n = length_of(step, rank, micro_batch);
  const double begin = step + 0.5 * rank + 0.25 * micro_batch;
  return (at::arange(n * 4, at::kFloat).view({n, 4}) / 8.0 + begin).sin();
}

// Mean of no tokens: NaN.
at::Tensor mean_loss(const at::Tensor& output) {
  return (output - 0.5).square().sum() / static_cast<double>(output.size(0));
}

at::Tensor values_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& parameter : module.parameters())
    parts.push_back(parameter.detach().flatten());
  return at::cat(parts);
}

// One process, one batch a step.
at::Tensor trained_alone(int ranks, std::optional<double> max_norm) {
  Net net = seeded_net();
  SGD sgd(net->parameters(), SGDOptions(kRate));
  for (int step = 0; step < kSteps; ++step) {
    std::vector<at::Tensor> all;
    for (int rank = 0; rank < ranks; ++rank) {
      for (int i = 0; i < kMicroBatches; ++i) all.push_back(tokens(step, rank, i));
    }
    mean_loss(net(at::cat(all))).backward();
    if (max_norm) {
      double squares = 0;
      for (const at::Tensor& parameter : net->parameters())
        squares += parameter.grad().square().sum().item<double>();
      const double factor = std::min(1.0, *max_norm / (std::sqrt(squares) + 1e-6));
      for (const at::Tensor& parameter : net->parameters()) parameter.mutable_grad().mul_(factor);
    }
    sgd.step();
    sgd.zero_grad();
  }
  return values_of(*net);
}

// A gradient of this net is a sum over at most 72 tokens x 8 hidden units of terms of order 1; its parts are rounded, weighted
// and added in another order: at most 600 roundings of 2^-24. A step multiplies them by kRate and passes on earlier errors amplified
// by at most 2.
double rounding_bound() {
  return 600 * std::pow(2.0, -24) * kRate * std::pow(2.0, kSteps);
}

enum class Strategy { kCopies, kZero1, kZero2, kFullShard };

struct Case {
  std::string name;
  AcceleratorOptions options;
  std::optional<double> max_norm;
};

AcceleratorOptions options_of(Strategy strategy) {
  AcceleratorOptions options{.gradient_accumulation_steps = kMicroBatches};
  if (strategy == Strategy::kZero1) options.deepspeed_plugin.emplace().zero_stage = 1;
  if (strategy == Strategy::kZero2) options.deepspeed_plugin.emplace().zero_stage = 2;
  if (strategy == Strategy::kFullShard) options.fsdp_plugin.emplace();
  return options;
}

Case on_gloo() {
  Case of{"copies on Gloo", options_of(Strategy::kCopies), std::nullopt};
  of.options.init_process_group.backend = "gloo";
  return of;
}

// The scale is a power of two, and forwards run in fp32.
Case in_fp16() {
  Case of{"copies, scaled", options_of(Strategy::kCopies), 0.125};
  of.options.mixed_precision = "fp16";
  of.options.grad_scaler.init_scale = 1024;
  of.options.autocast.enabled = false;
  return of;
}

std::vector<Case> cases() {
  AcceleratorOptions each_batch = options_of(Strategy::kCopies);
  each_batch.gradient_accumulation_steps = 1;
  each_batch.gradient_accumulation_plugin =
      GradientAccumulationPlugin{.num_steps = kMicroBatches, .sync_each_batch = true};
  return {{"copies", options_of(Strategy::kCopies), std::nullopt},
          {"copies, clipped", options_of(Strategy::kCopies), 0.125},
          {"copies, each batch exchanged", each_batch, std::nullopt},
          {"ZeRO-1", options_of(Strategy::kZero1), 0.125},
          {"ZeRO-2", options_of(Strategy::kZero2), std::nullopt},
          {"FULL_SHARD", options_of(Strategy::kFullShard), 0.125}};
}

at::Tensor trained_on_ranks(const Case& of) {
  Accelerator accelerator(of.options);
  Net net = seeded_net();
  SGD sgd(net->parameters(), SGDOptions(kRate));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int step = 0; step < kSteps; ++step) {
    for (int i = 0; i < kMicroBatches; ++i) {
      const at::Tensor batch = tokens(step, accelerator.process_index(), i);
      const auto accumulating = accelerator.accumulate(model);
      accelerator.backward(mean_loss(model(batch)), {.weight = static_cast<double>(batch.size(0))});
      if (of.max_norm && accelerator.sync_gradients())
        accelerator.clip_grad_norm_(net->parameters(), *of.max_norm);
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  return values_of(*net);
}

void expect_the_mean_over_all_tokens(const Case& of, int ranks) {
  const at::Tensor expected = trained_alone(ranks, of.max_norm);
  ASSERT_FALSE(expected.allclose(values_of(*seeded_net()), 0.0, 0.01));
  EXPECT_LE((trained_on_ranks(of) - expected).abs().max().item<double>(), rounding_bound())
      << of.name;
}

class WeightedOnRanks : public ::testing::TestWithParam<int> {};

TEST_P(WeightedOnRanks, MicroBatchesOfAnyLengthHaveTheGradientOfTheMeanOverAllTokens) {
  test::run_ranks(GetParam(), [] {
    const PartialState state;  // one group for all
    for (const Case& of : cases()) expect_the_mean_over_all_tokens(of, GetParam());
  });
}

TEST_P(WeightedOnRanks, SoTheyHaveOnGloo) {
  test::run_ranks(GetParam(), [] { expect_the_mean_over_all_tokens(on_gloo(), GetParam()); });
}

TEST_P(WeightedOnRanks, SoTheyHaveWithTheScaleOfFp16) {
  test::run_ranks(GetParam(), [] { expect_the_mean_over_all_tokens(in_fp16(), GetParam()); });
}

INSTANTIATE_TEST_SUITE_P(, WeightedOnRanks, ::testing::Values(1, 2, 4));

class Weighted : public ::testing::Test {
 protected:
  void TearDown() override { PartialState::reset(); }
};

TEST_F(Weighted, GradientsOfNoTokensAtAllAreZero) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    Net net = seeded_net();
    SGD sgd(net->parameters(), SGDOptions(kRate));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const at::Tensor loss = mean_loss(model(at::full({0, 4}, 1.0)));
    ASSERT_TRUE(loss.isnan().item<bool>());
    accelerator.backward(loss, {.weight = 0.0});
    for (const at::Tensor& parameter : net->parameters())
      EXPECT_TRUE(parameter.grad().equal(at::zeros_like(parameter)));
    // The next one counts as ever.
    optimizer.zero_grad();
    accelerator.backward(mean_loss(model(at::full({2, 4}, 1.0))), {.weight = 2.0});
    EXPECT_GT(net->second->bias.grad().abs().item<double>(), 0);
  });
}

// Its weight is not there in the next accumulation, whose gradient is the mean of what has come since.
TEST_F(Weighted, ABackwardThatFailedCountsForNothing) {
  Accelerator accelerator;
  Linear net(2, 1);
  const auto model = accelerator.prepare(net);
  const at::Tensor with_no_graph = at::ones({});
  EXPECT_ANY_THROW(accelerator.backward(with_no_graph, {.weight = 5.0}));
  accelerator.backward(model(at::ones({1, 2})).sum(), {.weight = 2.0});
  EXPECT_TRUE(at::equal(net->weight.grad(), at::ones({1, 2})));
  net->zero_grad();
  EXPECT_ANY_THROW(accelerator.backward(with_no_graph, {.weight = 5.0}));
  accelerator.backward(model(at::ones({1, 2})).sum());
  EXPECT_TRUE(at::equal(net->weight.grad(), at::ones({1, 2})));
}

TEST_F(Weighted, AWeightThatIsNoCountIsRefused) {
  Accelerator accelerator({.gradient_accumulation_steps = 2});
  Net net = seeded_net();
  auto model = accelerator.prepare(net);
  for (const double weight :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const Error error = test::error_of([&] {
      accelerator.backward(mean_loss(model(at::full({2, 4}, 1.0))), {.weight = weight});
    });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("weight"));
  }
}

TEST_F(Weighted, WeightsOfSomeMicroBatchesOnlyAreRefused) {
  Accelerator accelerator({.gradient_accumulation_steps = 2});
  Net net = seeded_net();
  auto model = accelerator.prepare(net);
  const auto backward = [&](std::optional<double> weight) {
    const auto accumulating = accelerator.accumulate(model);
    accelerator.backward(mean_loss(model(at::full({2, 4}, 1.0))), {.weight = weight});
  };
  backward(2.0);
  EXPECT_EQ(test::error_of([&] { backward(std::nullopt); }).code(), ErrorCode::kInvalidArgument);
  accelerator.free_memory();
  model = accelerator.prepare(net);
  backward(std::nullopt);
  EXPECT_EQ(test::error_of([&] { backward(2.0); }).code(), ErrorCode::kInvalidArgument);
}

TEST_F(Weighted, WithinNoSyncNobodyKnowsWhereTheMeanIsMade) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    Net net = seeded_net();
    auto model = accelerator.prepare(net);
    const auto alone = Accelerator::no_sync(model);
    const Error error = test::error_of([&] {
      accelerator.backward(mean_loss(model(at::full({2, 4}, 1.0))), {.weight = 2.0});
    });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.remedy(), HasSubstr("accumulate"));
  });
}

}  // namespace
}  // namespace accel::weighted_gradients_test
