// What PowerSGD makes of the gradients of copies, and what it remembers. Against PyTorch's: tests/peer/train_peer.py.

#include <filesystem>
#include <limits>
#include <utility>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/communication_hook.h>
#include <accel/error.h>
#include <accel/operations.h>
#include <accel/random.h>

#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::power_sgd_test {
namespace {

using ::testing::HasSubstr;
using Hook = DDPCommunicationHookType;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    set_seed(9);
    first = register_module("first", torch::nn::Linear(16, 24));
    second = register_module("second", torch::nn::Linear(24, 4));
  }
  at::Tensor forward(const at::Tensor& input) { return second(first(input).tanh()).sin(); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(Net);

at::Tensor batch_of(int rank, int step = 0) {
  return at::arange(64, at::kFloat).view({4, 16}).add(5 * step).sin().mul(1 + rank);
}

// Begins to compress after two exchanges, whatever the gradient's size.
DistributedDataParallelKwargs compressing(Hook hook, std::int64_t columns) {
  DistributedDataParallelKwargs ddp;
  ddp.comm_hook = hook;
  ddp.comm_state_option = {
      .matrix_approximation_rank = columns, .start_powerSGD_iter = 2, .min_compression_rate = 0.01};
  return ddp;
}

// A run of training of its own.
struct CopiedRun {
  explicit CopiedRun(const DistributedDataParallelKwargs& ddp)
      : accelerator({.ddp = ddp}), sgd(net->parameters(), torch::optim::SGDOptions(0.1)) {}

  void step(const Prepared<Net>& model, const AcceleratedOptimizer& optimizer, int step) {
    accelerator.backward(model(batch_of(accelerator.process_index(), step)).square().mean());
    optimizer.step();
    optimizer.zero_grad();
  }
  [[nodiscard]] std::vector<at::Tensor> weights() const {
    std::vector<at::Tensor> weights;
    for (const at::Tensor& parameter : net->parameters())
      weights.push_back(parameter.detach().clone());
    return weights;
  }

  Accelerator accelerator;
  Net net;
  torch::optim::SGD sgd;
};

void expect_same(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(found[i].equal(expected[i])) << "parameter " << i;
}

// Gradients of `steps` backwards for one batch of each rank; weights stay.
std::vector<std::vector<at::Tensor>> gradients_of_steps(const DistributedDataParallelKwargs& ddp,
                                                        int steps) {
  CopiedRun run(ddp);
  auto model = run.accelerator.prepare(run.net);
  std::vector<std::vector<at::Tensor>> all;
  for (int step = 0; step < steps; ++step) {
    run.net->zero_grad();
    run.accelerator.backward(model(batch_of(run.accelerator.process_index())).square().mean());
    all.emplace_back();
    for (const at::Tensor& parameter : run.net->parameters())
      all.back().push_back(parameter.grad().clone());
  }
  return all;
}

TEST(PowerSgd, WithAColumnForEachRowTheProductIsTheMean) {
  test::run_ranks(2, [] {
    const auto exact = gradients_of_steps({}, 1)[0];
    // The 4 x 24 weight's rank is 4, the 24 x 16 one's 16. Of a bucket as a square, 23 columns are its rank.
    for (const auto& [hook, columns] :
         {std::pair(Hook::kPowerSgd, 24), std::pair(Hook::kBatchedPowerSgd, 23)}) {
      const auto found = gradients_of_steps(compressing(hook, columns), 3)[2];
      for (std::size_t i = 0; i < exact.size(); ++i) {
        // P is orthonormal to a few roundings of fp32, each of at most 2^-24 of the largest number, in sums of 24 products.
        const double bound = 24 * 8 * 0x1p-24 * exact[i].abs().max().item<double>() +
                             24 * 8 * 0x1p-24 * exact[0].abs().max().item<double>();
        EXPECT_LE((found[i] - exact[i]).abs().max().item<double>(), bound) << i;
      }
    }
  });
}

TEST(PowerSgd, WhatOneStepLeavesOutTheNextOnesBring) {
  test::run_ranks(2, [] {
    const at::Tensor exact = gradients_of_steps({}, 1)[0][0];
    // How far the mean of many steps' gradients of one batch is from the exact one.
    const auto distance = [&](bool feeds_back, int steps) {
      DistributedDataParallelKwargs ddp = compressing(Hook::kPowerSgd, 1);
      ddp.comm_state_option.use_error_feedback = feeds_back;
      const auto gradients = gradients_of_steps(ddp, steps + 2);
      at::Tensor sum = at::zeros_like(exact);
      for (int step = 2; step < steps + 2; ++step)
        sum += gradients[static_cast<std::size_t>(step)][0];
      return (sum / steps - exact).norm().item<double>();
    };
    // What is left out of all steps together is the last step's error, which does not grow: of their mean it is 1 / steps.
    // Without feedback each step leaves out the same.
    EXPECT_LT(distance(true, 120), distance(true, 12) / 4);
    EXPECT_GT(distance(false, 120), distance(false, 12) / 2);
  });
}

// Steps 0 to 3, and 4 to 7 in the same run or in another one that goes on from its checkpoint.
void expect_resumed_is_uninterrupted(DistributedDataParallelKwargs ddp,
                                     double megabytes,
                                     const std::filesystem::path& folder) {
  ddp.bucket_cap_mb = megabytes;
  std::vector<at::Tensor> expected;
  {
    CopiedRun run(ddp);
    auto [model, optimizer] = run.accelerator.prepare(run.net, run.sgd);
    for (int step = 0; step < 8; ++step) {
      if (step == 4) run.accelerator.save_state(folder);
      run.step(model, optimizer, step);
    }
    expected = run.weights();
  }
  CopiedRun run(ddp);
  auto [model, optimizer] = run.accelerator.prepare(run.net, run.sgd);
  run.accelerator.load_state(folder);
  for (int step = 4; step < 8; ++step) run.step(model, optimizer, step);
  expect_same(run.weights(), expected);
}

TEST(PowerSgd, ARunThatGoesOnFromACheckpointIsTheUninterruptedOneToTheBit) {
  const test::ScratchFolder folder;
  test::run_ranks(2, [&] {
    for (const double megabytes : {25.0, 0.001}) {
      expect_resumed_is_uninterrupted(
          compressing(Hook::kPowerSgd, 1), megabytes, folder.path() / "by_matrix");
      expect_resumed_is_uninterrupted(
          compressing(Hook::kBatchedPowerSgd, 2), megabytes, folder.path() / "by_bucket");
    }
  });
}

// Errors and Q of other sizes are not taken over; the numbers of exchanges and of seeds are.
TEST(PowerSgd, AStateOfOtherColumnsOrOfTheOtherFormBeginsAnew) {
  const test::ScratchFolder folder;
  test::run_ranks(2, [&] {
    {
      CopiedRun run(compressing(Hook::kPowerSgd, 1));
      auto [model, optimizer] = run.accelerator.prepare(run.net, run.sgd);
      for (int step = 0; step < 3; ++step) run.step(model, optimizer, step);
      run.accelerator.save_state(folder.path() / "saved");
    }
    for (const auto& [hook, columns] :
         {std::pair(Hook::kPowerSgd, 2), std::pair(Hook::kBatchedPowerSgd, 1)}) {
      CopiedRun run(compressing(hook, columns));
      auto [model, optimizer] = run.accelerator.prepare(run.net, run.sgd);
      run.accelerator.load_state(folder.path() / "saved");
      for (int step = 3; step < 5; ++step) run.step(model, optimizer, step);
      for (const at::Tensor& weight : run.weights())
        EXPECT_TRUE(weight.isfinite().all().item<bool>());
    }
  });
}

TEST(PowerSgd, OnMoreRanksThanHaveSavedAllGoOnTogether) {
  const test::ScratchFolder folder;
  const auto train = [&](bool resumes) {
    CopiedRun run(compressing(Hook::kPowerSgd, 1));
    auto [model, optimizer] = run.accelerator.prepare(run.net, run.sgd);
    if (resumes) run.accelerator.load_state(folder.path() / "saved");
    for (int step = 0; step < 4; ++step) run.step(model, optimizer, step);
    if (!resumes) run.accelerator.save_state(folder.path() / "saved");
    for (const at::Tensor& weight : run.weights()) {
      const at::Tensor all = gather(weight.unsqueeze(0));
      for (int rank = 1; rank < run.accelerator.num_processes(); ++rank)
        EXPECT_TRUE(all[rank].equal(all[0]));
    }
  };
  test::run_ranks(2, [&] { train(false); });
  test::run_ranks(3, [&] { train(true); });
}

TEST(PowerSgd, AGradientOfZerosStaysOne) {
  test::run_ranks(2, [] {
    for (const Hook hook : {Hook::kPowerSgd, Hook::kBatchedPowerSgd}) {
      CopiedRun run(compressing(hook, 2));
      auto model = run.accelerator.prepare(run.net);
      for (int step = 0; step < 4; ++step) {
        run.net->zero_grad();
        run.accelerator.backward(model(batch_of(0)).mean() * 0.0);
      }
      for (const at::Tensor& parameter : run.net->parameters())
        EXPECT_TRUE(parameter.grad().eq(0).all().item<bool>());
    }
  });
}

TEST(PowerSgd, AnOverflowReachesAllRanksAndIsForgotten) {
  test::run_ranks(2, [] {
    for (const Hook hook : {Hook::kPowerSgd, Hook::kBatchedPowerSgd}) {
      CopiedRun run(compressing(hook, 1));
      auto model = run.accelerator.prepare(run.net);
      const auto backward = [&](double factor) {
        run.net->zero_grad();
        run.accelerator.backward(model(batch_of(0)).square().mean() * factor);
      };
      const auto is_finite = [&] {
        return at::isfinite(run.net->first->weight.grad()).all().item<bool>();
      };
      for (int step = 0; step < 4; ++step) backward(1);
      backward(run.accelerator.process_index() == 1 ? std::numeric_limits<double>::infinity() : 1);
      EXPECT_FALSE(is_finite());
      backward(1);
      EXPECT_TRUE(is_finite());
    }
  });
}

void expect_invalid(const DistributedDataParallelKwargs& ddp, const char* message) {
  Accelerator accelerator({.ddp = ddp});
  Net net;
  try {
    accelerator.prepare(net);
    ADD_FAILURE() << "it was prepared; expected: " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr(message));
  }
}

TEST(PowerSgd, OptionsThatMakeNoSenseAreRefusedByName) {
  test::run_ranks(2, [] {
    DistributedDataParallelKwargs ddp = compressing(Hook::kPowerSgd, 0);
    expect_invalid(ddp, "matrix_approximation_rank is 0");
    ddp = compressing(Hook::kPowerSgd, 1);
    ddp.comm_state_option.start_powerSGD_iter = 1;
    expect_invalid(ddp, "start_powerSGD_iter is 1");
    ddp = compressing(Hook::kFp16, 1);
    ddp.comm_wrapper = Hook::kPowerSgd;
    expect_invalid(ddp, "ddp.comm_wrapper is power_sgd");
  });
}

TEST(PowerSgd, RanksWithOtherOptionsAreRefusedByTheFirstThatDiffers) {
  test::run_ranks(2, [] {
    DistributedDataParallelKwargs ddp = compressing(Hook::kPowerSgd, 1);
    const bool is_other = PartialState().process_index() == 1;
    if (is_other) ddp.comm_state_option.matrix_approximation_rank = 2;
    expect_invalid(ddp,
                   "ddp of rank 1 has matrix_approximation_rank 2 where rank 0 has "
                   "matrix_approximation_rank 1");
    ddp = {};
    if (is_other) ddp.bucket_cap_mb = 1;
    expect_invalid(ddp, "ddp of rank 1 has bucket_cap_mb 1 where rank 0 has bucket_cap_mb 25");
  });
}

}  // namespace
}  // namespace accel::power_sgd_test
