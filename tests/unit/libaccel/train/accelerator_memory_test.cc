// In-memory checkpoints of an Accelerator without a launcher; with one they are in tests/integration/memory.

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/error.h>

#include "libaccel/engine/checkpoint/states/optimizer_state.h"

namespace accel::accelerator_memory_test {
namespace {

using ::testing::HasSubstr;

class AcceleratorMemory : public ::testing::Test {
 protected:
  void TearDown() override { PartialState::reset(); }
};

TEST_F(AcceleratorMemory, WithoutALauncherNothingIsKeptAndTrainingGoesOn) {
  Accelerator accelerator({.project_config = {.memory_checkpoint_every = 1}});
  auto net = accelerator.prepare(torch::nn::Linear(2, 2));

  EXPECT_FALSE(accelerator.save_state_in_memory());
  EXPECT_FALSE(accelerator.load_state_in_memory());
}

TEST_F(AcceleratorMemory, NumberOfStepsBelowZeroIsRefused) {
  try {
    const Accelerator accelerator({.project_config = {.memory_checkpoint_every = -1}});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr("memory_checkpoint_every is -1"));
  }
}

// What was expected before the first step is what there is after it.
template <typename Optimizer, typename Options>
void expect_forecast(const Options& options) {
  torch::nn::Linear net(8, 4);
  net->bias.set_requires_grad(false);
  Optimizer optimizer(net->parameters(), options);
  const std::uint64_t expected = checkpoint::expected_state_bytes(optimizer);
  net(at::ones({1, 8})).sum().backward();
  optimizer.step();
  std::uint64_t bytes = 0;
  const checkpoint::ParameterNames names({net.get()});
  for (const auto& [name, tensor] : checkpoint::save_optimizer(optimizer, names).tensors)
    bytes += tensor.nbytes();
  EXPECT_EQ(expected, bytes);
  EXPECT_EQ(checkpoint::expected_state_bytes(optimizer), 0U);
}

TEST(ExpectedState, IsWhatTheFirstStepMakes) {
  using namespace torch::optim;  // NOLINT: the optimizers
  expect_forecast<SGD>(SGDOptions(0.1));
  expect_forecast<SGD>(SGDOptions(0.1).momentum(0.9));
  expect_forecast<Adam>(AdamOptions(0.1));
  expect_forecast<AdamW>(AdamWOptions(0.1));
  expect_forecast<AdamW>(AdamWOptions(0.1).amsgrad(true));
  expect_forecast<RMSprop>(RMSpropOptions(0.1));
  expect_forecast<RMSprop>(RMSpropOptions(0.1).momentum(0.9).centered(true));
}

}  // namespace
}  // namespace accel::accelerator_memory_test
