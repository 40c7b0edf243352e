// Steps that clip (gradient_clipping of DeepSpeed): they do what a program does that clips before each step, to the bit.

#include <cstddef>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <accel/accelerator.h>
#include <accel/error.h>

#include "tests/support/rank_group.h"

namespace accel::clipping_steps_test {
namespace {

using ::testing::HasSubstr;

constexpr double kNorm = 0.05;
constexpr int kSteps = 4;
constexpr int kAccumulated = 2;

struct Row {
  int stage;
  int num_ranks;
  const char* precision;
};

enum class ClippedBy { kStep, kProgram, kNobody };

std::vector<at::Tensor> train(const Row& row, ClippedBy who) {
  AcceleratorOptions options;
  options.mixed_precision = row.precision;
  options.gradient_accumulation_steps = kAccumulated;
  DeepSpeedPlugin& plugin = options.deepspeed_plugin.emplace();
  plugin.zero_stage = row.stage;
  if (who == ClippedBy::kStep) plugin.gradient_clipping = kNorm;
  Accelerator accelerator(options);
  torch::manual_seed(3);
  torch::nn::Sequential net(torch::nn::Linear(7, 9), torch::nn::Tanh(), torch::nn::Linear(9, 3));
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  torch::manual_seed(100 + accelerator.process_index());
  for (int batch = 0; batch < kSteps * kAccumulated; ++batch) {
    auto scope = accelerator.accumulate(model);
    accelerator.backward(model(at::randn({5, 7})).square().mean());
    if (who == ClippedBy::kProgram && accelerator.sync_gradients())
      accelerator.clip_grad_norm_(net->parameters(), kNorm);
    optimizer.step();
    optimizer.zero_grad();
  }
  std::vector<at::Tensor> values;
  for (const at::Tensor& parameter : net->parameters())
    values.push_back(parameter.detach().clone());
  accelerator.wait_for_everyone();
  return values;
}

class ClippingSteps : public ::testing::TestWithParam<Row> {};

TEST_P(ClippingSteps, DoWhatAProgramDoesThatClips) {
  const Row row = GetParam();
  test::run_ranks(row.num_ranks, [&] {
    const auto found = train(row, ClippedBy::kStep);
    const auto expected = train(row, ClippedBy::kProgram);
    const auto unclipped = train(row, ClippedBy::kNobody);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(found[i].equal(expected[i])) << i;
      EXPECT_FALSE(found[i].equal(unclipped[i])) << "nothing was clipped";
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Stages,
                         ClippingSteps,
                         ::testing::Values(Row{0, 1, "no"},
                                           Row{3, 1, "bf16"},
                                           Row{0, 2, "no"},
                                           Row{1, 2, "no"},
                                           Row{2, 3, "no"},
                                           Row{3, 3, "no"},
                                           Row{3, 2, "bf16"},
                                           Row{1, 2, "fp16"},
                                           Row{2, 2, "fp16"}),
                         [](const auto& row) {
                           return "stage" + std::to_string(row.param.stage) + "_ranks" +
                                  std::to_string(row.param.num_ranks) + "_" + row.param.precision;
                         });

TEST(ClippingStepsOfSettings, AutoIsTheNormOfThePeer) {
  test::run_ranks(1, [] {
    AcceleratorOptions options;
    options.deepspeed_plugin.emplace().hf_ds_config =
        R"({"zero_optimization": {"stage": 0}, "gradient_clipping": "auto"})";
    Accelerator accelerator(options);
    torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const double before = net->weight.item<double>();

    accelerator.backward(8 * net->weight.sum());
    optimizer.step();

    EXPECT_NEAR(net->weight.item<double>(), before - 1.0, 1e-5);
  });
}

TEST(ClippingStepsOfSettings, AClosureIsRefused) {
  test::run_ranks(1, [] {
    AcceleratorOptions options;
    options.deepspeed_plugin.emplace().gradient_clipping = 1.0;
    Accelerator accelerator(options);
    torch::nn::Linear net(1, 1);
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    try {
      std::ignore = optimizer.step([&] { return net->weight.sum(); });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_THAT(error.remedy(), HasSubstr("clip in the closure"));
    }
  });
}

}  // namespace
}  // namespace accel::clipping_steps_test
