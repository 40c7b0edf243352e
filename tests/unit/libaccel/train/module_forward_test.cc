// Forwards of the module itself, past the prepared model: `model->forward(x)` as a program of LibTorch has it.

#include <cstddef>
#include <string>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/random.h>

#include "tests/support/rank_group.h"

namespace accel::module_forward_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    set_seed(9);
    first = register_module("first", torch::nn::Linear(4, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    second = register_module("second", torch::nn::Linear(8, 1));
  }
  at::Tensor encode(const at::Tensor& input) { return norm(first(input)).tanh(); }
  at::Tensor forward(const at::Tensor& input) { return second(encode(input)); }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Net);

enum class Spelling { kPrepared, kModule, kByTurns };

at::Tensor batch_of(const Accelerator& accelerator, int step) {
  return at::arange(12, at::kFloat).view({3, 4}) / (2.0 + step + accelerator.process_index());
}

// Parameters and buffers after six steps, of which two accumulate.
std::vector<at::Tensor> trained(const AcceleratorOptions& options, Spelling spelling) {
  Accelerator accelerator(options);
  Net net;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.5).momentum(0.5));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto backward = [&, &model = model](int step) {
    const bool is_prepared =
        spelling == Spelling::kPrepared || (spelling == Spelling::kByTurns && step % 2 == 0);
    const at::Tensor batch = batch_of(accelerator, step);
    accelerator.backward((is_prepared ? model(batch) : model->forward(batch)).square().mean());
  };
  for (int step = 0; step < 6; ++step) {
    if (step % 3 == 1) {
      const auto scope = accelerator.no_sync(model);
      backward(step + 7);
    }
    backward(step);
    optimizer.step();
    optimizer.zero_grad();
  }
  std::vector<at::Tensor> state;
  for (const at::Tensor& parameter : net->parameters()) state.push_back(parameter.detach().clone());
  for (const at::Tensor& buffer : net->buffers()) state.push_back(buffer);
  return state;
}

// Of the states `ours`: rank 0's have the bits of the prepared model's, and all ranks have rank 0's parameters.
void expect_same_training(const AcceleratorOptions& options, Spelling spelling) {
  const auto reference = trained(options, Spelling::kPrepared);
  const auto ours = trained(options, spelling);
  ASSERT_EQ(ours.size(), reference.size());
  constexpr std::size_t kNumParameters = 6;
  const PartialState state;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if (i >= kNumParameters && !state.is_main_process()) break;
    EXPECT_TRUE(ours[i].equal(reference[i])) << i;
  }
}

TEST(ModuleForward, TrainsCopiesToTheBitsOfThePreparedOne) {
  test::run_ranks(2, [] {
    for (const Spelling spelling : {Spelling::kModule, Spelling::kByTurns}) {
      for (const bool as_view : {true, false}) {  // false: of c10d::Reducer
        SCOPED_TRACE(std::to_string(static_cast<int>(spelling)) + std::to_string(as_view));
        expect_same_training({.ddp = {.gradient_as_bucket_view = as_view}}, spelling);
      }
    }
  });
}

TEST(ModuleForward, TrainsZeroOneToTheBitsOfThePreparedOne) {
  test::run_ranks(2, [] {
    for (const Spelling spelling : {Spelling::kModule, Spelling::kByTurns})
      expect_same_training({.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 1}}, spelling);
  });
}

TEST(ModuleForward, TrainsShardsToTheBitsOfThePreparedOne) {
  test::run_ranks(2, [] {
    for (const Spelling spelling : {Spelling::kModule, Spelling::kByTurns})
      expect_same_training({.fsdp_plugin = FullyShardedDataParallelPlugin{}}, spelling);
  });
}

TEST(ModuleForward, AveragesGradientsOfShardsAfterAForwardWithoutSync) {
  test::run_ranks(2, [] {
    Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{}});
    Net net;
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.5));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const at::Tensor before = net->first->weight.detach().clone();
    {
      const auto scope = accelerator.no_sync(model);
      accelerator.backward(model(batch_of(accelerator, 0)).square().mean());
    }

    accelerator.backward(model->forward(batch_of(accelerator, 1)).square().mean());
    optimizer.step();

    EXPECT_FALSE(net->first->weight.equal(before));
  });
}

TEST(ModuleForward, SendsTheBuffersOfRank0AtTheEndOfTheBackward) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    Net net;
    auto model = accelerator.prepare(net);

    accelerator.backward(model->forward(batch_of(accelerator, 0)).square().mean());

    const at::Tensor all = gather(net->norm->running_mean.unsqueeze(0));
    EXPECT_TRUE(all[0].equal(all[1]));
  });
}

TEST(ModuleForward, NamesAParameterThatAMethodOfTheModuleLeavesOut) {
  test::run_ranks(2, [] {
    for (const bool as_view : {true, false}) {
      Accelerator accelerator({.ddp = {.gradient_as_bucket_view = as_view}});
      Net net;
      auto model = accelerator.prepare(net);
      const at::Tensor batch = batch_of(accelerator, 0);
      try {
        accelerator.backward(model->encode(batch).square().mean());
        ADD_FAILURE() << "the backward went on";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
        EXPECT_THAT(error.message(), HasSubstr("second.weight, second.bias"));
      }

      net->zero_grad();
      accelerator.backward(model(batch).square().mean());  // and goes on
      const at::Tensor all = gather(net->first->weight.grad().unsqueeze(0));
      EXPECT_TRUE(all[0].equal(all[1]));
    }
  });
}

// Two losses of one forward.
void expect_two_losses_averaged(const AcceleratorOptions& options) {
  Accelerator accelerator(options);
  Net net;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.5));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const at::Tensor output = model(batch_of(accelerator, 0));

  accelerator.backward(output.square().mean(), {.retain_graph = true});
  accelerator.backward(output.sin().mean());
  optimizer.step();

  // The mean of what each rank would have by itself.
  Net alone;
  const at::Tensor of_rank_0 = alone(at::arange(12, at::kFloat).view({3, 4}) / 2.0);
  const at::Tensor of_rank_1 = alone(at::arange(12, at::kFloat).view({3, 4}) / 3.0);
  ((of_rank_0.square().mean() + of_rank_0.sin().mean() + of_rank_1.square().mean() +
    of_rank_1.sin().mean()) /
   2)
      .backward();
  torch::optim::SGD(alone->parameters(), torch::optim::SGDOptions(0.5)).step();
  // Sums of four terms in another order: rounding of 2^-24 each, on values of order 1.
  EXPECT_TRUE(net->first->weight.allclose(alone->first->weight, 0, 1e-6));
  const at::Tensor all = accelerator.gather(net->second->weight.detach().clone());
  EXPECT_TRUE(all[0].equal(all[1]));
}

TEST(ModuleForward, ASecondBackwardOfOneForwardIsAveragedToo) {
  test::run_ranks(2, [] {
    expect_two_losses_averaged({});
    expect_two_losses_averaged({.ddp = {.gradient_as_bucket_view = false}});
    expect_two_losses_averaged({.fsdp_plugin = FullyShardedDataParallelPlugin{}});
  });
}

TEST(ModuleForward, ASecondBackwardIsRefusedByNameWhereParametersMayBeUnused) {
  test::run_ranks(2, [] {
    Accelerator accelerator({.ddp = {.find_unused_parameters = true}});
    Net net;
    auto model = accelerator.prepare(net);
    const at::Tensor output = model(batch_of(accelerator, 0));
    accelerator.backward(output.square().mean(), {.retain_graph = true});
    try {
      accelerator.backward(output.sin().mean());
      ADD_FAILURE() << "the second backward went on";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), HasSubstr("got a second gradient"));
    }
  });
}

TEST(ModuleForward, AnAverageThatIsToHaveAGraphIsRefused) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    Net net;
    auto model = accelerator.prepare(net);
    try {
      accelerator.backward(model(batch_of(accelerator, 0)).mean(), {.create_graph = true});
      ADD_FAILURE() << "the backward went on";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_THAT(error.remedy(), HasSubstr("torch::autograd::grad"));
    }
  });
}

TEST(ModuleForward, IsRefusedByNameWhereOutputsAreLookedAt) {
  test::run_ranks(2, [] {
    for (const bool is_static : {false, true}) {
      Accelerator accelerator(
          {.ddp = {.find_unused_parameters = !is_static, .static_graph = is_static}});
      Net net;
      auto model = accelerator.prepare(net);
      const at::Tensor batch = batch_of(accelerator, 0);
      for (int step = 0; step < 2; ++step) accelerator.backward(model(batch).square().mean());
      try {
        accelerator.backward(model->forward(batch).square().mean());
        ADD_FAILURE() << "the backward went on";
      } catch (const Error& error) {
        EXPECT_THAT(error.message(), HasSubstr("the parameter second."));
        EXPECT_THAT(error.remedy(), HasSubstr("model(x)"));
      }
    }
  });
}

void expect_refused_without_autocast(const AcceleratorOptions& options) {
  Accelerator accelerator(options);
  Net net;
  auto model = accelerator.prepare(net);
  const at::Tensor batch = at::ones({3, 4});
  try {
    accelerator.backward(model->forward(batch).square().mean());
    ADD_FAILURE() << "the backward went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(), AllOf(HasSubstr("second."), HasSubstr("mixed precision")));
    EXPECT_THAT(error.remedy(), HasSubstr("model(x)"));
  }
  accelerator.backward(model(batch).square().mean());
}

TEST(ModuleForward, IsRefusedByNameWhereNoneHasHadTheMixedPrecision) {
  expect_refused_without_autocast({.mixed_precision = "bf16", .cpu = true});
  test::run_ranks(2, [] {
    expect_refused_without_autocast({.mixed_precision = "bf16"});
    expect_refused_without_autocast(
        {.mixed_precision = "bf16", .fsdp_plugin = FullyShardedDataParallelPlugin{}});
  });
}

TEST(ModuleForward, MayHaveTheMixedPrecisionOfAScope) {
  test::run_ranks(2, [] {
    Accelerator accelerator({.mixed_precision = "bf16"});
    Net net;
    auto model = accelerator.prepare(net);
    at::Tensor output;
    {
      const auto autocast = accelerator.autocast();
      output = model->forward(batch_of(accelerator, 0));
    }

    accelerator.backward(output.to(at::kFloat).square().mean());

    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    const at::Tensor all = gather(net->first->weight.grad().unsqueeze(0));
    EXPECT_TRUE(all[0].equal(all[1]));
  });
}

}  // namespace
}  // namespace accel::module_forward_test
