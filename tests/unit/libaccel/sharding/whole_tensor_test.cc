// Whole tensors: optimizers whose steps need them, and ZeRO-1, whose gradients are whole.

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/random.h>

#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::whole_tensor_test {
namespace {

using ::testing::HasSubstr;

struct NetImpl : torch::nn::Module {
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
  NetImpl() {
    first = register_module("first", torch::nn::Linear(6, 19));
    second = register_module("second", torch::nn::Linear(19, 5));
  }
  at::Tensor forward(const at::Tensor& input) { return second(first(input).tanh()); }
};
TORCH_MODULE(Net);

Net seeded_net() {
  set_seed(11);
  return Net();
}

at::Tensor flat_parameters(const Net& net) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& parameter : net->parameters())
    parts.push_back(parameter.detach().flatten());
  return at::cat(parts);
}

at::Tensor batch_of(const Accelerator& accelerator, int step) {
  return (at::arange(24, at::kFloat).view({4, 6}) + step + 3 * accelerator.process_index()) / 30.0;
}

// Steps along the gradient of each tensor divided by its norm, with momentum: what it does with an element depends on all
// elements of the tensor, and on its shape.
struct NormedOptions : torch::optim::OptimizerCloneableOptions<NormedOptions> {
  explicit NormedOptions(double rate = 0.1) : lr_(rate) {}
  TORCH_ARG(double, lr);

 public:
  [[nodiscard]] double get_lr() const override { return lr(); }
  void set_lr(const double rate) override { lr(rate); }
};

struct NormedState : torch::optim::OptimizerCloneableParamState<NormedState> {
  TORCH_ARG(torch::Tensor, momentum);
};

class NormedDescent : public torch::optim::Optimizer {
 public:
  explicit NormedDescent(std::vector<at::Tensor> parameters)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))},
                  std::make_unique<NormedOptions>()) {}

  torch::Tensor step(LossClosure) override {
    const at::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      for (at::Tensor& parameter : group.params()) {
        if (!parameter.grad().defined()) continue;
        auto& state = state_[parameter.unsafeGetTensorImpl()];
        if (state == nullptr) {
          auto made = std::make_unique<NormedState>();
          made->momentum(at::zeros_like(parameter));
          state = std::move(made);
        }
        at::Tensor& momentum = static_cast<NormedState&>(*state).momentum();
        momentum.mul_(0.9).add_(parameter.grad());
        // By columns first: wrong for what is not of the parameter's shape.
        const at::Tensor columns =
            parameter.dim() == 2 ? momentum / momentum.norm(2, 0, true) : momentum;
        parameter.sub_(columns / columns.norm(), group.options().get_lr());
      }
    }
    return {};
  }
};

enum class How { kCopies, kByTensor, kEvenly, kZeroOne, kByTensorUnits };

AcceleratorOptions options_of(How how) {
  AcceleratorOptions options;
  if (how == How::kZeroOne) options.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 1};
  if (how == How::kByTensor || how == How::kEvenly)
    options.fsdp_plugin = FullyShardedDataParallelPlugin{.shard_by_tensor = how == How::kByTensor};
  if (how == How::kByTensorUnits) {
    options.fsdp_plugin =
        FullyShardedDataParallelPlugin{.auto_wrap_policy = AutoWrapPolicy::kTransformerBasedWrap,
                                       .transformer_cls_names_to_wrap = {{"Linear"}},
                                       .shard_by_tensor = true};
  }
  return options;
}

template <typename MakeOptimizer>
at::Tensor trained(How how, MakeOptimizer make) {
  Accelerator accelerator(options_of(how));
  Net net = seeded_net();
  auto [model, optimizer] = accelerator.prepare(net, make(net));
  for (int step = 0; step < 4; ++step) {
    accelerator.backward(model(batch_of(accelerator, step)).square().mean());
    optimizer.step();
    optimizer.zero_grad();
  }
  return flat_parameters(net);
}

class WholeTensors : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, WholeTensors, ::testing::Values(1, 2, 3, 4));

TEST_P(WholeTensors, AnOptimizerThatNeedsThemTrainsToTheWeightsOfCopies) {
  test::run_ranks(GetParam(), [] {
    const auto make = [](Net& net) { return std::make_shared<NormedDescent>(net->parameters()); };
    const at::Tensor copies = trained(How::kCopies, make);
    EXPECT_FALSE(copies.equal(flat_parameters(seeded_net())));
    EXPECT_TRUE(trained(How::kByTensor, make).equal(copies));
    EXPECT_TRUE(trained(How::kByTensorUnits, make).equal(copies));
  });
}

TEST_P(WholeTensors, GoToAnElementWiseOptimizerToo) {
  test::run_ranks(GetParam(), [] {
    const auto make = [](Net& net) {
      return std::make_shared<torch::optim::AdamW>(net->parameters(),
                                                   torch::optim::AdamWOptions(0.01));
    };
    const at::Tensor copies = trained(How::kCopies, make);
    EXPECT_TRUE(trained(How::kByTensor, make).equal(copies));
    EXPECT_TRUE(trained(How::kZeroOne, make).equal(copies));
  });
}

TEST_P(WholeTensors, HaveOneOwnerEachAndTheShapeOfTheParameter) {
  test::run_ranks(GetParam(), [] {
    Accelerator accelerator(options_of(How::kByTensor));
    Net net = seeded_net();
    auto sgd = std::make_shared<torch::optim::SGD>(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    std::int64_t own = 0;
    for (const at::Tensor& piece : sgd->param_groups()[0].params()) {
      const auto parameters = net->parameters();
      EXPECT_TRUE(std::any_of(parameters.begin(), parameters.end(), [&](const at::Tensor& whole) {
        return whole.sizes() == piece.sizes() && whole.equal(piece);
      }));
      ++own;
    }
    const at::Tensor total = accelerator.reduce(at::full({1}, own, at::kLong));
    EXPECT_EQ(total.item<std::int64_t>(), static_cast<std::int64_t>(net->parameters().size()));
  });
}

TEST(WholeTensorsRefusals, NameTheOptionToAnOptimizerThatCannotStepParts) {
  test::run_ranks(2, [] {
    Accelerator accelerator(options_of(How::kEvenly));
    Net net = seeded_net();
    try {
      accelerator.prepare(net, std::make_shared<NormedDescent>(net->parameters()));
      ADD_FAILURE() << "it was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_THAT(error.message(), HasSubstr("NormedDescent cannot work on parts of tensors"));
      EXPECT_THAT(error.remedy(), HasSubstr("shard_by_tensor = true"));
    }
  });
}

TEST(WholeTensorsRefusals, SayThatStatesOfAnUnknownOptimizerAreNotSaved) {
  test::run_ranks(2, [] {
    const test::ScratchFolder scratch;
    Accelerator accelerator(options_of(How::kByTensor));
    Net net = seeded_net();
    auto [model, optimizer] =
        accelerator.prepare(net, std::make_shared<NormedDescent>(net->parameters()));
    try {
      accelerator.save_state(scratch.path() / "state");
      ADD_FAILURE() << "it was saved";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_THAT(error.message(), HasSubstr("NormedDescent has states that cannot be saved"));
    }
  });
}

// ---- ZeRO-1 ----

TEST_P(WholeTensors, OfGradientsAreSeenAndChangedByUsersCode) {
  test::run_ranks(GetParam(), [] {
    const auto train = [](How how) {
      Accelerator accelerator(options_of(how));
      Net net = seeded_net();
      auto sgd = std::make_shared<torch::optim::SGD>(net->parameters(),
                                                     torch::optim::SGDOptions(0.5).momentum(0.9));
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (int step = 0; step < 3; ++step) {
        accelerator.backward(model(batch_of(accelerator, step)).square().mean());
        EXPECT_GT(torch::nn::utils::clip_grad_norm_(net->parameters(), 0.01), 0.01);
        net->second->bias.mutable_grad() = net->second->bias.grad() * 2;  // another tensor
        optimizer.step();
        net->zero_grad();
      }
      return flat_parameters(net);
    };
    EXPECT_TRUE(train(How::kZeroOne).equal(train(How::kCopies)));
  });
}

TEST_P(WholeTensors, OfGradientsAreClippedByTheNormOfAllRanks) {
  test::run_ranks(GetParam(), [] {
    const auto train = [](How how) {
      Accelerator accelerator(options_of(how));
      Net net = seeded_net();
      auto sgd = std::make_shared<torch::optim::SGD>(net->parameters(), 0.5);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      double norm = 0;
      for (int step = 0; step < 3; ++step) {
        accelerator.backward(model(batch_of(accelerator, step)).square().mean());
        norm = accelerator.clip_grad_norm_(net->parameters(), 0.01).item<double>();
        optimizer.step();
        optimizer.zero_grad();
      }
      EXPECT_GT(norm, 0.01);
      return flat_parameters(net);
    };
    // Squares of 238 elements summed in another order: a relative error below 238 * 2^-24 of steps of 0.5 * 0.01.
    EXPECT_LE((train(How::kZeroOne) - train(How::kCopies)).abs().max().item<double>(), 1e-6);
  });
}

// A gradient of the user's own may lie in memory in another way than its parameter.
TEST_P(WholeTensors, OfGradientsMayHaveOtherStridesAndAreClippedOnce) {
  test::run_ranks(GetParam(), [] {
    const auto train = [](How how) {
      Accelerator accelerator(options_of(how));
      Net net = seeded_net();
      auto sgd = std::make_shared<torch::optim::SGD>(net->parameters(), 0.5);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      accelerator.backward(model(batch_of(accelerator, 0)).square().mean());
      at::Tensor& gradient = net->first->weight.mutable_grad();
      gradient = gradient.t().contiguous().t();
      accelerator.clip_grad_value_(net->parameters(), 0.001);
      optimizer.step();
      return flat_parameters(net);
    };
    EXPECT_TRUE(train(How::kZeroOne).equal(train(How::kCopies)));
  });
}

TEST_P(WholeTensors, OfGradientsLeaveEachRankItsShareOfTheStates) {
  test::run_ranks(GetParam(), [] {
    Accelerator accelerator(options_of(How::kZeroOne));
    if (accelerator.num_processes() > 1) {
      EXPECT_EQ(accelerator.distributed_type(), DistributedType::kDeepspeed);
    }
    Net net = seeded_net();
    auto adam = std::make_shared<torch::optim::AdamW>(net->parameters());
    auto [model, optimizer] = accelerator.prepare(net, adam);
    accelerator.backward(model(batch_of(accelerator, 0)).square().mean());
    optimizer.step();
    std::int64_t own = 0;
    for (const auto& [key, state] : adam->state())
      own += static_cast<torch::optim::AdamWParamState&>(*state).exp_avg().numel();
    const std::int64_t whole = flat_parameters(net).numel();
    EXPECT_EQ(accelerator.reduce(at::full({1}, own, at::kLong)).item<std::int64_t>(), whole);
    // And what rounding to cache lines adds: 16 elements for each parameter and shard.
    EXPECT_LE(own, whole / accelerator.num_processes() + 16 * 5);
    for (const at::Tensor& parameter : net->parameters()) EXPECT_TRUE(parameter.grad().defined());
  });
}

TEST(ZeroStages, AreNotMixedWithTheOtherPlugin) {
  AcceleratorOptions options;
  options.fsdp_plugin = FullyShardedDataParallelPlugin{};
  options.deepspeed_plugin = DeepSpeedPlugin{};
  try {
    const Accelerator accelerator(options);
    ADD_FAILURE() << "both were taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("both fsdp_plugin and deepspeed_plugin are set"));
  }
}

}  // namespace
}  // namespace accel::whole_tensor_test
