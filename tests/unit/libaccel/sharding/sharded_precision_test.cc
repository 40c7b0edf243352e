// Mixed precision of shards: parameters in 16 bits, masters in fp32, and what each of them is used for. In checkpoints:
// precision_of_checkpoints_test.cc.

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>

#include <accel/accelerator.h>

#include "libaccel/engine/pager/paged_storage.h"
#include "tests/support/precision_trainer.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::sharded_precision_test {
namespace {

using test::batch;
using test::flat;
using test::kBf16;
using test::kWidth;
using test::Layout;
using test::loss_of;
using test::make_optimizer;
using test::Rule;
using test::seeded_net;
using torch::optim::Optimizer;
using Trainer = test::PrecisionTrainer;

// The same by hand: a copy in bf16 that computes, masters in fp32 that are stepped, whole on every rank. Gradients are
// averaged in fp32.
at::Tensor trained_by_hand(Accelerator& accelerator, Rule rule, int steps) {
  torch::nn::Sequential net = seeded_net();
  std::vector<at::Tensor> masters;
  for (const at::Tensor& parameter : net->parameters())
    masters.push_back(parameter.detach().clone().requires_grad_(true));
  for (at::Tensor& parameter : net->parameters())
    parameter.set_data(parameter.detach().to(at::kBFloat16));
  const auto optimizer = make_optimizer(masters, rule);
  for (int step = 0; step < steps; ++step) {
    loss_of(net->forward(batch(step, accelerator.process_index()).to(at::kBFloat16))).backward();
    const at::NoGradGuard no_grad;
    const std::vector<at::Tensor> parameters = net->parameters();
    for (std::size_t p = 0; p < masters.size(); ++p) {
      at::Tensor gradient = parameters[p].grad().to(at::kFloat);
      gradient.mul_(1.0 / accelerator.num_processes());
      masters[p].mutable_grad() = accelerator.reduce(gradient);
      parameters[p].mutable_grad().reset();
    }
    optimizer->step();
    for (std::size_t p = 0; p < masters.size(); ++p) parameters[p].copy_(masters[p]);
  }
  return flat(net->parameters());
}

class ShardedPrecision : public test::PrecisionOnRanks {};

TEST_P(ShardedPrecision, EqualsMastersAndRoundingsByHandToTheBit) {
  run_ranks([] {
    for (const Rule rule : {Rule::kSgd, Rule::kAdamW}) {
      Trainer trainer(kBf16, rule);
      trainer.train(0, 4);

      const at::Tensor expected = trained_by_hand(trainer.accelerator(), rule, 4);

      EXPECT_EQ(trainer.values().scalar_type(), at::kBFloat16);
      const bool is_paged = pager::paged_storage(trainer.net()->parameters()[0]) != nullptr;
      EXPECT_EQ(is_paged, GetParam().ranks > GetParam().of_a_node);
      EXPECT_TRUE(at::equal(trainer.values(), expected)) << (rule == Rule::kSgd ? "SGD" : "AdamW");
    }
  });
}

TEST_P(ShardedPrecision, GivesAModelOf16BitsMastersOf32) {
  run_ranks([] {
    torch::nn::Sequential net = seeded_net();
    net->to(at::kBFloat16);
    const at::Tensor before = flat(net->parameters()).clone();
    Trainer trainer(kBf16, Rule::kAdamW, net);

    EXPECT_TRUE(at::equal(trainer.values(), before));
    for (const at::Tensor& piece : trainer.optimizer().param_groups()[0].params())
      EXPECT_EQ(piece.scalar_type(), at::kFloat);
  });
}

TEST_P(ShardedPrecision, ConvertsBuffersAndOutputsWhereToldTo) {
  run_ranks([] {
    torch::nn::BatchNorm1d norm(kWidth);
    Trainer everything("bf16", Rule::kAdamW, torch::nn::Sequential(norm));
    EXPECT_EQ(norm->running_mean.scalar_type(), at::kBFloat16);
    EXPECT_EQ(norm->num_batches_tracked.scalar_type(), at::kLong);
    EXPECT_EQ(everything.forward(0).scalar_type(), at::kBFloat16);

    Trainer outputs(MixedPrecisionPolicy{.param_dtype = at::kBFloat16, .output_dtype = at::kFloat});
    EXPECT_EQ(outputs.forward(0).scalar_type(), at::kFloat);
    outputs.train(0, 1);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Ranks,
    ShardedPrecision,
    ::testing::Values(Layout{2, 2}, Layout{3, 3}, Layout{4, 4}, Layout{2, 1}, Layout{4, 2}),
    test::layout_name);

// Without a policy: what the peer's FSDP does with a model of 16 bits under mixed_precision.
TEST(MixedPrecisionWithoutAPolicy, TrainsAModelOf16BitsAsOneThatWasConverted) {
  enum class Converts { kNo, kByHand };
  const auto train = [](std::optional<MixedPrecision> precision, Converts converts) {
    AcceleratorOptions options;
    options.mixed_precision = precision;
    options.fsdp_plugin.emplace();
    Accelerator accelerator(options);
    torch::nn::Sequential net = seeded_net();
    net->to(at::kBFloat16);
    if (converts == Converts::kByHand) net->to(at::kFloat);
    auto [model, optimizer] =
        accelerator.prepare(net, make_optimizer(net->parameters(), Rule::kAdamW));
    for (int step = 0; precision && step < 3; ++step) {
      accelerator.backward(loss_of(model(batch(step, accelerator.process_index()))));
      optimizer.step();
      optimizer.zero_grad();
    }
    const at::Tensor piece = optimizer.optimizer().param_groups()[0].params()[0];
    EXPECT_EQ(piece.scalar_type(), net->parameters()[0].scalar_type());
    return flat(net->parameters()).clone();
  };
  test::run_ranks(2, [&] {
    const at::Tensor widened = train(PrecisionType::kBf16, Converts::kNo);
    EXPECT_EQ(widened.scalar_type(), at::kFloat);
    EXPECT_TRUE(at::equal(widened, train(PrecisionType::kBf16, Converts::kByHand)));
  });
  test::run_ranks(
      2, [&] { EXPECT_EQ(train(std::nullopt, Converts::kNo).scalar_type(), at::kBFloat16); });
}

// So that a checkpoint of one process is one of several, and the other way round.
TEST(MixedPrecisionWithoutAPolicy, ResumesAModelOf16BitsOnAnotherNumberOfRanks) {
  const test::ScratchFolder folder;
  enum class Loads { kNo, kYes };
  const auto run = [&](const char* file, Loads loads) {
    AcceleratorOptions options;
    options.mixed_precision = PrecisionType::kBf16;
    options.fsdp_plugin.emplace();
    Accelerator accelerator(options);
    torch::nn::Sequential net = seeded_net();
    net->to(at::kBFloat16);
    auto [model, optimizer] =
        accelerator.prepare(net, make_optimizer(net->parameters(), Rule::kAdamW));
    EXPECT_EQ(net->parameters()[0].scalar_type(), at::kFloat);
    if (loads == Loads::kYes) accelerator.load_state(folder.file(file));
    accelerator.backward(loss_of(model(batch(0, accelerator.process_index()))));
    optimizer.step();
    optimizer.zero_grad();
    if (loads == Loads::kNo) accelerator.save_state(folder.file(file));
    accelerator.wait_for_everyone();
  };
  test::run_ranks(1, [&] { run("of one", Loads::kNo); });
  test::run_ranks(2, [&] {
    run("of one", Loads::kYes);
    run("of two", Loads::kNo);
  });
  test::run_ranks(1, [&] { run("of two", Loads::kYes); });
}

}  // namespace
}  // namespace accel::sharded_precision_test
