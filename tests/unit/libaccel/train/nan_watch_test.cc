// AcceleratorOptions::nan_watch: which rank, backward and parameter is named, and when.

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/error.h>

#include "tests/support/error_of.h"
#include "tests/support/rank_group.h"

namespace accel::nan_watch_test {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Kind = TrainingAnomaly::Kind;

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<std::string> g_found;

NanWatch noting(OnAnomaly action = OnAnomaly::kWarn) {
  g_found.clear();
  return {.action = action,
          .on_anomaly = [](const TrainingAnomaly& anomaly) { g_found.push_back(anomaly.text); }};
}

torch::nn::Sequential two_layers() {
  torch::nn::Sequential net(torch::nn::Linear(2, 3), torch::nn::Linear(3, 1));
  return net;
}

// 1, but its derivative is infinite where `breaks`.
at::Tensor fragile(const at::Tensor& values, bool breaks) {
  return breaks ? (values - values.detach()).abs().add(0).sqrt() : values * 0;
}

class NanWatchTest : public ::testing::Test {
 protected:
  void TearDown() override { PartialState::reset(); }
};

TEST_F(NanWatchTest, NamesTheFirstParameterOfTheFirstBackward) {
  Accelerator accelerator({.cpu = true, .nan_watch = noting()});
  torch::nn::Sequential net = two_layers();
  auto model = accelerator.prepare(net);
  const at::Tensor input = at::ones({4, 2});

  accelerator.backward(model(input).sum());
  EXPECT_THAT(g_found, IsEmpty());
  const at::Tensor hidden = net->at<torch::nn::LinearImpl>(0).forward(input);
  accelerator.backward(model(input).sum() + fragile(hidden, true).sum());

  // Of the first layer alone: the second one's gradients are finite, and come first.
  ASSERT_THAT(g_found, SizeIs(1));
  EXPECT_THAT(
      g_found[0],
      AllOf(HasSubstr("backward 2: the gradient of 0."), HasSubstr("numbers that are not finite")));
}

TEST_F(NanWatchTest, TellsOfALastingNanOnce) {
  Accelerator accelerator({.cpu = true, .nan_watch = noting()});
  const torch::nn::Sequential net = two_layers();
  auto model = accelerator.prepare(net);
  const auto step = [&](float factor) {
    accelerator.backward(model(at::full({4, 2}, factor)).sum());
  };

  for (int i = 0; i < 3; ++i) step(kInf);
  step(1);
  step(kInf);

  EXPECT_THAT(g_found,
              ElementsAre(HasSubstr("backward 1: the loss is not finite"),
                          HasSubstr("backward 5: the loss is not finite")));
}

TEST_F(NanWatchTest, TellsOfALossThatJumps) {
  Accelerator accelerator({.cpu = true, .nan_watch = noting()});
  const torch::nn::Linear net(1, 1);
  auto model = accelerator.prepare(net);
  const auto step = [&](double loss) {
    const at::Tensor base = model(at::ones({1, 1})).sum();
    accelerator.backward(base - base.detach() + loss);
  };

  for (int i = 0; i < 40; ++i) step(2 + 0.1 * (i % 5));
  EXPECT_THAT(g_found, IsEmpty());
  step(0.1);  // better is no jump
  step(2.6);  // within what losses do
  EXPECT_THAT(g_found, IsEmpty());
  step(9);

  EXPECT_THAT(g_found, ElementsAre(HasSubstr("backward 43: the loss jumps to 9")));
}

TEST_F(NanWatchTest, LossesAreLeftAloneWithoutAScore) {
  NanWatch watch = noting();
  watch.spike_score = 0;
  Accelerator accelerator({.cpu = true, .nan_watch = watch});
  const torch::nn::Linear net(1, 1);
  auto model = accelerator.prepare(net);

  for (int i = 0; i < 20; ++i) accelerator.backward(model(at::ones({1, 1})).sum() * 0 + 1);
  accelerator.backward(model(at::ones({1, 1})).sum() * 0 + 1e9);

  EXPECT_THAT(g_found, IsEmpty());
}

TEST_F(NanWatchTest, ThrowsBeforeTheStep) {
  Accelerator accelerator({.cpu = true, .nan_watch = noting(OnAnomaly::kThrow)});
  const torch::nn::Sequential net = two_layers();
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
  auto [model, optimizer] = accelerator.prepare(net, sgd);

  const Error error = error_of([&] { accelerator.backward(model(at::full({4, 2}, kInf)).sum()); });

  EXPECT_EQ(error.code(), ErrorCode::kNotFinite);
  EXPECT_THAT(error.message(),
              AllOf(HasSubstr("the loss is not finite"), HasSubstr("on rank 0 first")));
  optimizer.zero_grad();
  accelerator.backward(model(at::ones({4, 2})).sum());
  optimizer.step();
}

TEST_F(NanWatchTest, OverflowsOfScaledGradientsAreNone) {
  Accelerator accelerator(
      {.mixed_precision = PrecisionType::kFp16, .cpu = true, .nan_watch = noting()});
  const torch::nn::Sequential net = two_layers();
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
  auto [model, optimizer] = accelerator.prepare(net, sgd);

  accelerator.backward(model(at::full({4, 2}, 30000.0)).sum() * 10000);
  optimizer.step();

  EXPECT_TRUE(accelerator.optimizer_step_was_skipped());
  EXPECT_THAT(g_found, IsEmpty());
}

TEST_F(NanWatchTest, OptionsThatCannotBeAreRefused) {
  NanWatch narrow;
  narrow.window = 3;
  EXPECT_THAT(error_of([&] { Accelerator({.cpu = true, .nan_watch = narrow}); }).message(),
              HasSubstr("nan_watch.window is 3"));
}

// A gradient that is not finite on one rank is so on all after the average: the one where it began is named, on all.
void name_the_rank(int num_ranks, const AcceleratorOptions& options) {
  test::run_ranks(num_ranks, [&] {
    Accelerator accelerator(options);
    const torch::nn::Sequential net = two_layers();
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto step = [&](bool breaks) {
      const at::Tensor out = model(at::ones({4, 2}));
      accelerator.backward(out.sum() + fragile(out, breaks).sum());
    };
    step(false);
    const int last = accelerator.num_processes() - 1;

    const Error error = error_of([&] { step(accelerator.process_index() == last); });

    EXPECT_THAT(error.message(),
                AllOf(HasSubstr("backward 2: the gradient of 1."),
                      HasSubstr("on rank " + std::to_string(last) + " first")));
    EXPECT_THAT(g_found, SizeIs(accelerator.process_index() == last ? 1 : 0));
    optimizer.zero_grad();
    step(false);  // training goes on
    optimizer.step();
    accelerator.end_training();
  });
}

TEST(NanWatchRanks, NamesTheRankOfTwo) {
  name_the_rank(2, {.cpu = true, .nan_watch = noting(OnAnomaly::kThrow)});
}

TEST(NanWatchRanks, NamesTheRankOfFour) {
  name_the_rank(4, {.cpu = true, .nan_watch = noting(OnAnomaly::kThrow)});
}

TEST(NanWatchRanks, NamesTheRankOfADividedModel) {
  name_the_rank(2,
                {.cpu = true,
                 .fsdp_plugin = FullyShardedDataParallelPlugin{},
                 .nan_watch = noting(OnAnomaly::kThrow)});
}

}  // namespace
}  // namespace accel::nan_watch_test
