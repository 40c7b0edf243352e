// The optimizers that LibTorch has not: checkpoints, divided models, what is refused. Numbers: tests/peer/optimizers.py.

#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/lion.h>
#include <accel/lomo.h>
#include <accel/muon.h>
#include <accel/operations.h>
#include <accel/random.h>
#include <accel/schedule_free.h>

#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::optimizers_test {
namespace {

using ::testing::HasSubstr;
using OptimizerPointer = std::shared_ptr<torch::optim::Optimizer>;
using Make = std::function<OptimizerPointer(const std::vector<at::Tensor>&)>;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    set_seed(3);
    first =
        register_module("first", torch::nn::Linear(torch::nn::LinearOptions(8, 12).bias(false)));
    second =
        register_module("second", torch::nn::Linear(torch::nn::LinearOptions(12, 4).bias(false)));
  }
  at::Tensor forward(const at::Tensor& input) { return second(first(input).tanh()); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(Net);

at::Tensor batch_of(int rank, int step) {
  return at::arange(32, at::kFloat).view({4, 8}).add(3 * step).sin().mul(1 + rank);
}

std::vector<at::Tensor> weights_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> weights;
  for (const at::Tensor& parameter : module.parameters())
    weights.push_back(parameter.detach().clone());
  return weights;
}

void expect_same(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(found[i].equal(expected[i])) << "parameter " << i;
}

struct Training {
  Training(const AcceleratorOptions& options, const Make& make)
      : accelerator(options), sgd(make(net->parameters())) {}

  void train(int first, int last) {
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    optimizer.train();
    for (int step = first; step < last; ++step) {
      const BackwardOptions backward{.learning_rate =
                                         dynamic_cast<BackwardOptimizer*>(sgd.get()) == nullptr
                                             ? std::nullopt
                                             : std::optional(0.05)};
      accelerator.backward(model(batch_of(accelerator.process_index(), step)).square().mean(),
                           backward);
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  // Whole on rank 0, and nothing elsewhere.
  [[nodiscard]] std::vector<at::Tensor> weights() {
    const StateView view = accelerator.get_state_dict(accelerator.prepare(net));
    std::vector<at::Tensor> weights;
    if (!accelerator.is_main_process()) return weights;
    for (const auto& [name, tensor] : view.tensors) weights.push_back(tensor.values.clone());
    return weights;
  }

  Accelerator accelerator;
  Net net;
  OptimizerPointer sgd;
};

template <typename Optimizer, typename Options>
Make maker(Options options) {
  return [options](const std::vector<at::Tensor>& parameters) {
    return std::make_shared<Optimizer>(parameters, options);
  };
}

const std::vector<std::pair<const char*, Make>>& makers() {
  static const std::vector<std::pair<const char*, Make>> all = {
      {"AdamWScheduleFree",
       maker<AdamWScheduleFree>(AdamWScheduleFreeOptions(0.05).warmup_steps(3).weight_decay(0.1))},
      {"SGDScheduleFree", maker<SGDScheduleFree>(SGDScheduleFreeOptions(0.5).weight_decay(0.1))},
      {"Lion", maker<Lion>(LionOptions(0.01).weight_decay(0.1))},
      {"Muon", maker<Muon>(MuonOptions(0.02))},
      {"Lomo", maker<Lomo>(LomoOptions().weight_decay(0.1))},
      {"AdaLomo", maker<AdaLomo>(AdaLomoOptions())},
  };
  return all;
}

TEST(Optimizers, ARunThatGoesOnFromACheckpointIsTheUninterruptedOneToTheBit) {
  for (const auto& [name, make] : makers()) {
    SCOPED_TRACE(name);
    const test::ScratchFolder folder;
    Training uninterrupted({}, make);
    uninterrupted.train(0, 3);
    uninterrupted.accelerator.save_state(folder.path() / "state");
    uninterrupted.train(3, 6);

    Training resumed({}, make);
    resumed.train(0, 1);  // another state, which loading replaces
    resumed.accelerator.load_state(folder.path() / "state");
    resumed.train(3, 6);
    expect_same(weights_of(*resumed.net), weights_of(*uninterrupted.net));
  }
}

AcceleratorOptions divided(bool by_tensor = false) {
  AcceleratorOptions options;
  options.fsdp_plugin = FullyShardedDataParallelPlugin{.shard_by_tensor = by_tensor};
  return options;
}

AcceleratorOptions zero(int stage) {
  AcceleratorOptions options;
  options.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = stage};
  return options;
}

// The weights after a few steps, on rank 0, with the mode to be looked at.
std::vector<at::Tensor> trained(const AcceleratorOptions& options, const Make& make) {
  Training training(options, make);
  training.train(0, 3);
  auto [model, optimizer] = training.accelerator.prepare(training.net, training.sgd);
  optimizer.eval();
  training.train(3, 5);
  optimizer.eval();
  return training.weights();
}

TEST(Optimizers, OnDividedModelsStepAsOnCopiesToTheBit) {
  test::run_ranks(2, [] {
    for (const auto& [name, make] : makers()) {
      SCOPED_TRACE(name);
      const std::string kind = name;
      if (kind == "AdaLomo") continue;
      const auto expected = trained({}, make);
      expect_same(trained(divided(/*by_tensor=*/true), make), expected);
      if (kind == "Muon") continue;
      expect_same(trained(divided(), make), expected);
      expect_same(trained(zero(1), make), expected);
    }
  });
}

class DividedOptimizer : public ::testing::TestWithParam<std::size_t> {};

TEST_P(DividedOptimizer, GoesOnFromCheckpointsOfOtherRanks) {
  const auto& [name, make] = makers()[GetParam()];
  const AcceleratorOptions options = divided(/*by_tensor=*/std::string(name) == "Muon");
  const test::ScratchFolder folder;
  test::run_ranks(2, [&, &make = make] {
    Training run(options, make);
    run.train(0, 3);
    run.accelerator.save_state(folder.path() / "state");
  });
  test::run_ranks(3, [&, &make = make] {
    Training run(options, make);
    run.accelerator.prepare(run.net, run.sgd);
    run.accelerator.load_state(folder.path() / "state");
    run.accelerator.save_state(folder.path() / "again");
  });
  test::run_ranks(1, [&, &make = make] {
    const auto go_on_from = [&](const char* state) {
      Training run({}, make);
      run.train(0, 1);
      run.accelerator.load_state(folder.path() / state);
      run.train(3, 5);
      return weights_of(*run.net);
    };
    expect_same(go_on_from("again"), go_on_from("state"));
  });
}

INSTANTIATE_TEST_SUITE_P(ByPlace, DividedOptimizer, ::testing::Values(0, 1, 2, 3));

void expect_error(ErrorCode code, const char* message, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "nothing was refused; expected: " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_THAT(error.message(), HasSubstr(message));
  }
}

TEST(Optimizers, ThatNeedWholeTensorsAreRefusedByNameOnPartsOfThem) {
  test::run_ranks(2, [] {
    for (const AcceleratorOptions& options : {divided(), zero(1)}) {
      expect_error(ErrorCode::kUnsupported, "accel::Muon cannot work on parts of tensors", [&] {
        Training(options, makers()[3].second).train(0, 1);
      });
      expect_error(ErrorCode::kUnsupported, "accel::AdaLomo cannot work on parts of tensors", [&] {
        Training(options, makers()[5].second).train(0, 1);
      });
    }
    expect_error(ErrorCode::kUnsupported, "accel::AdaLomo steps whole tensors", [] {
      Training(divided(/*by_tensor=*/true), makers()[5].second).train(0, 1);
    });
  });
}

TEST(Optimizers, RefuseWhatMakesNoSense) {
  Net net;
  const std::vector<at::Tensor> parameters = net->parameters();
  constexpr ErrorCode kInvalid = ErrorCode::kInvalidArgument;
  expect_error(
      kInvalid, "got a parameter of shape [4]", [] { Muon({torch::nn::Linear(2, 4)->bias}); });
  expect_error(kInvalid, "adjust_lr_fn is 'none'", [&] {
    Muon(parameters, MuonOptions().adjust_lr_fn("none"));
  });
  expect_error(kInvalid, "ns_steps is 100", [&] { Muon(parameters, MuonOptions().ns_steps(100)); });
  expect_error(kInvalid, "the second of betas is 1", [&] {
    Lion(parameters, LionOptions().betas({0.9, 1}));
  });
  expect_error(kInvalid, "above 0 and below 1", [&] {
    SGDScheduleFree(parameters, SGDScheduleFreeOptions().momentum(1));
  });
  expect_error(
      kInvalid, "clip_grad_norm is 0", [&] { Lomo(parameters, LomoOptions().clip_grad_norm(0)); });
  expect_error(ErrorCode::kUnsupported, "accel::Muon is not saved by torch::save()", [&] {
    std::ostringstream stream;
    const Muon muon(parameters);
    torch::save(muon, stream);
  });
}

TEST(ScheduleFree, StepsInTrainModeAlone) {
  Training training({}, makers()[0].second);
  auto [model, optimizer] = training.accelerator.prepare(training.net, training.sgd);
  training.accelerator.backward(model(batch_of(0, 0)).mean());
  expect_error(ErrorCode::kInvalidArgument, "was to step in eval mode", [&] { optimizer.step(); });
  optimizer.train();
  EXPECT_NO_THROW(optimizer.step());
}

TEST(ScheduleFree, EvalModeHoldsTheAverageOfWhereStepsHaveBeen) {
  at::Tensor weight = at::arange(3, at::kFloat).set_requires_grad(true);
  // Without warm-up and with a constant rate all steps weigh the same: x is the mean of z1, z2, z3.
  SGDScheduleFree sgd({weight}, SGDScheduleFreeOptions(0.5));
  sgd.train();
  at::Tensor sum = at::zeros({3});
  at::Tensor z = weight.detach().clone();
  for (int step = 1; step <= 3; ++step) {
    weight.mutable_grad() = at::full({3}, static_cast<double>(step));
    sgd.step();
    z = z - 0.5 * step;
    sum += z;
  }
  sgd.eval();
  // Numbers below 4 in a few roundings of fp32.
  EXPECT_LE((weight.detach() - sum / 3).abs().max().item<double>(), 4 * 16 * 0x1p-24);
  sgd.eval();  // again changes nothing
  EXPECT_LE((weight.detach() - sum / 3).abs().max().item<double>(), 4 * 16 * 0x1p-24);
}

TEST(ScheduleFree, OtherOptimizersHaveNoModes) {
  Training training({}, maker<torch::optim::SGD>(torch::optim::SGDOptions(0.1)));
  auto [model, optimizer] = training.accelerator.prepare(training.net, training.sgd);
  const auto before = weights_of(*training.net);
  optimizer.train();
  optimizer.eval();
  expect_same(weights_of(*training.net), before);
}

TEST(Lomo, LetsGoOfEachGradientWhileBackwardRuns) {
  Training training({}, makers()[4].second);
  auto [model, optimizer] = training.accelerator.prepare(training.net, training.sgd);
  const auto before = weights_of(*training.net);
  // When the gradient of the first layer comes, that of the second is gone, and its weight has stepped.
  bool has_looked = false;
  training.net->first->weight.register_hook([&](const at::Tensor&) {
    has_looked = true;
    EXPECT_FALSE(training.net->second->weight.grad().defined());
    EXPECT_FALSE(training.net->second->weight.equal(before[1]));
    EXPECT_TRUE(training.net->first->weight.equal(before[0]));
  });
  training.accelerator.backward(model(batch_of(0, 0)).mean(), {.learning_rate = 0.1});
  EXPECT_TRUE(has_looked);
  EXPECT_FALSE(training.net->first->weight.grad().defined());
  const auto stepped = weights_of(*training.net);
  EXPECT_FALSE(stepped[0].equal(before[0]));
  optimizer.step();  // nothing more
  expect_same(weights_of(*training.net), stepped);
}

TEST(Lomo, IsTheOnlyOneThatStepsInABackward) {
  Training none({}, maker<torch::optim::SGD>(torch::optim::SGDOptions(0.1)));
  auto model = none.accelerator.prepare(none.net);
  const at::Tensor loss = model(batch_of(0, 0)).mean();
  const BackwardOptions stepping{.learning_rate = 0.1};
  expect_error(ErrorCode::kInvalidArgument, "Are you sure you passed a LOMO optimizer", [&] {
    none.accelerator.backward(loss, stepping);
  });
  none.accelerator.prepare(Lomo({none.net->first->weight}), AdaLomo({none.net->second->weight}));
  expect_error(ErrorCode::kInvalidArgument, "several optimizers were prepared", [&] {
    none.accelerator.backward(loss, stepping);
  });
  expect_error(ErrorCode::kUnsupported, "accel::Lomo steps in the backward", [&] {
    Lomo({none.net->first->weight}).step();
  });
}

TEST(Lomo, IsRefusedWhileSeveralRanksAccumulate) {
  test::run_ranks(2, [] {
    Training training({.gradient_accumulation_steps = 2}, makers()[4].second);
    auto [model, optimizer] = training.accelerator.prepare(training.net, training.sgd);
    const auto scope = training.accelerator.accumulate(model);
    expect_error(
        ErrorCode::kInvalidArgument, "gradients are to be accumulated", [&, &model = model] {
          training.accelerator.backward(model(batch_of(0, 0)).mean(), {.learning_rate = 0.1});
        });
  });
}

TEST(Lomo, UnderFp16LeavesAStepOutWhereAGradientOverflows) {
  for (const int ranks : {1, 2}) {
    test::run_ranks(ranks, [] {
      Training training({.mixed_precision = "fp16"}, makers()[4].second);
      auto [model, optimizer] = training.accelerator.prepare(training.net, training.sgd);
      const auto before = weights_of(*training.net);
      const BackwardOptions stepping{.learning_rate = 0.1};
      const double scale = training.accelerator.scaler()->get_scale();
      training.accelerator.backward(
          model(batch_of(0, 0)).to(at::kFloat).mean() * std::numeric_limits<double>::infinity(),
          stepping);
      expect_same(weights_of(*training.net), before);
      EXPECT_TRUE(training.accelerator.optimizer_step_was_skipped());
      EXPECT_EQ(training.accelerator.scaler()->get_scale(), scale / 2);
      training.accelerator.backward(model(batch_of(0, 0)).to(at::kFloat).mean(), stepping);
      EXPECT_FALSE(weights_of(*training.net)[0].equal(before[0]));
      EXPECT_FALSE(training.net->first->weight.grad().defined());
    });
  }
}

}  // namespace
}  // namespace accel::optimizers_test
