// One module that is prepared, let go of, and prepared again.

#include <cstdlib>
#include <string>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/random.h>

#include "libaccel/engine/homes/parameter_claim.h"
#include "libaccel/engine/shm/memory/node_identity.h"
#include "tests/support/rank_group.h"

namespace accel::prepared_twice_test {
namespace {

using ::testing::HasSubstr;

torch::nn::Sequential make_net() {
  set_seed(5);
  return torch::nn::Sequential(torch::nn::Linear(8, 8), torch::nn::Linear(8, 8));
}

void train_once(Accelerator& accelerator, torch::nn::Sequential& net) {
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  accelerator.backward(model(at::ones({2, 8})).square().mean());
  optimizer.step();
  accelerator.wait_for_everyone();
}

// Two steps with one prepare() and with two.
void expect_equal_training() {
  Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{}});
  torch::nn::Sequential once = make_net();
  {
    torch::optim::SGD sgd(once->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(once, sgd);
    for (int step = 0; step < 2; ++step) {
      accelerator.backward(model(at::ones({2, 8})).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  torch::nn::Sequential twice = make_net();
  train_once(accelerator, twice);
  accelerator.free_memory();
  train_once(accelerator, twice);

  for (std::size_t i = 0; i < once->parameters().size(); ++i)
    EXPECT_TRUE(once->parameters()[i].equal(twice->parameters()[i])) << i;
  accelerator.wait_for_everyone();
}

TEST(PreparedTwice, GoesOnWithTheValuesThatItHad) {
  test::run_ranks(2, expect_equal_training);
}

TEST(PreparedTwice, GoesOnWithTheValuesThatItHadOverNodes) {
  test::run_ranks(2, [] {
    const std::string node = "node" + std::to_string(test::rank_of_this_process());
    ::setenv(shm::kTestNodeVariable, node.c_str(), 1);
    expect_equal_training();
  });
}

TEST(PreparedTwice, IsRefusedWhileTheFirstIsHeld) {
  test::run_ranks(2, [] {
    Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{}});
    torch::nn::Sequential net = make_net();
    const auto model = accelerator.prepare(net);
    accelerator.free_memory();
    try {
      std::ignore = accelerator.prepare(net);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_THAT(error.message(), HasSubstr("the parameter 0.weight is divided already"));
      EXPECT_THAT(error.remedy(), HasSubstr("before the module is prepared again"));
    }
    accelerator.wait_for_everyone();
  });
}

TEST(PreparedTwice, AParameterThatTwoModelsShareIsRefusedAsThat) {
  torch::nn::Linear encoder(2, 2);
  torch::nn::Sequential first(encoder, torch::nn::Linear(2, 2));
  torch::nn::Sequential second(encoder, torch::nn::Linear(2, 2));
  const sharding::ParameterClaim claim(trainable_parameters(*first));
  try {
    const sharding::ParameterClaim another(trainable_parameters(*second));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("0.weight is divided already, by another prepared"));
    EXPECT_THAT(error.remedy(), HasSubstr("as one module"));
  }
}

TEST(PreparedTwice, AnOptimizerOfTheFirstTimeIsRefused) {
  test::run_ranks(2, [] {
    Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{}});
    torch::nn::Sequential net = make_net();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    std::ignore = accelerator.prepare(net, sgd);
    accelerator.free_memory();
    try {
      std::ignore = accelerator.prepare(net, sgd);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_THAT(error.message(), HasSubstr("shards of a model that is not prepared any more"));
    }
    accelerator.wait_for_everyone();
  });
}

}  // namespace
}  // namespace accel::prepared_twice_test
