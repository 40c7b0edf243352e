// The state of every optimizer of LibTorch: after a round trip it steps as if nothing had happened.

#include "libaccel/engine/checkpoint/states/optimizer_state.h"

#include <functional>
#include <memory>
#include <tuple>

#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <accel/checkpoint.h>
#include <accel/error.h>

#include "tests/support/scratch_folder.h"
#include "tests/support/tensor_matchers.h"
#include "tests/support/tied_net.h"
#include "tests/unit/libaccel/checkpoint/training_run.h"

namespace accel::optimizer_state_test {
namespace {

using test::Randomness;
using test::SameTensor;
using test::SmallNet;
using ::testing::HasSubstr;
namespace optim = torch::optim;

using MakeOptimizer =
    std::function<std::unique_ptr<optim::Optimizer>(std::vector<at::Tensor> parameters)>;

template <typename O, typename Options>
MakeOptimizer maker(Options options) {
  return [options](std::vector<at::Tensor> parameters) -> std::unique_ptr<optim::Optimizer> {
    return std::make_unique<O>(std::move(parameters), options);
  };
}

struct Case {
  std::string name;
  MakeOptimizer make;
};

std::vector<Case> cases() {
  return {
      {"Sgd", maker<optim::SGD>(optim::SGDOptions(0.1))},
      {"SgdMomentum", maker<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9).nesterov(true))},
      {"Adam", maker<optim::Adam>(optim::AdamOptions(0.01).weight_decay(0.1))},
      {"AdamAmsgrad", maker<optim::Adam>(optim::AdamOptions(0.01).amsgrad(true))},
      {"AdamW", maker<optim::AdamW>(optim::AdamWOptions(0.01).betas({0.8, 0.95}))},
      {"RmspropCentered",
       maker<optim::RMSprop>(optim::RMSpropOptions(0.01).momentum(0.5).centered(true))},
      {"Adagrad", maker<optim::Adagrad>(optim::AdagradOptions(0.1).lr_decay(0.01))},
      {"LbfgsStrongWolfe",
       maker<optim::LBFGS>(
           optim::LBFGSOptions(0.5).max_iter(4).history_size(3).line_search_fn("strong_wolfe"))},
  };
}

struct Trainee {
  explicit Trainee(const MakeOptimizer& make, std::uint64_t seed) {
    Randomness random(seed);
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : net->parameters()) {
      parameter.detach().copy_(random.draw(parameter.sizes()));
    }
    optimizer = make(net->parameters());
  }

  void train(int first_step, int num_steps) {
    for (int step = first_step; step < first_step + num_steps; ++step) {
      const at::Tensor input = Randomness(static_cast<std::uint64_t>(step)).draw({8, 4});
      optimizer->step([&] {
        optimizer->zero_grad();
        at::Tensor loss = at::mse_loss(net(input), input.narrow(1, 0, 2));
        loss.backward();
        return loss;
      });
    }
  }

  CheckpointObjects objects() { return {.models = {net.get()}, .optimizers = {optimizer.get()}}; }

  SmallNet net;
  std::unique_ptr<optim::Optimizer> optimizer;
};

class EveryOptimizer : public ::testing::TestWithParam<Case> {};

TEST_P(EveryOptimizer, GoesOnToTheBitInAProcessWithOtherAddresses) {
  const test::ScratchFolder scratch;
  Trainee original(GetParam().make, 1);
  original.train(0, 4);
  save_checkpoint(scratch.path() / "saved", original.objects());
  original.train(4, 3);

  Trainee resumed(GetParam().make, 2);
  load_checkpoint(scratch.path() / "saved", resumed.objects());
  resumed.train(4, 3);

  const auto expected = original.net->parameters();
  const auto found = resumed.net->parameters();
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_THAT(found[i], SameTensor(expected[i])) << i;
}

INSTANTIATE_TEST_SUITE_P(OfLibTorch,
                         EveryOptimizer,
                         ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

std::string mismatch_of(optim::Optimizer& from,
                        std::vector<torch::nn::Module*> from_models,
                        optim::Optimizer& to,
                        std::vector<torch::nn::Module*> to_models) {
  auto saved = checkpoint::save_optimizer(from, checkpoint::ParameterNames(from_models));
  try {
    std::ignore = checkpoint::prepare_optimizer_load(
        to, checkpoint::ParameterNames(to_models), std::move(saved), "optimizer");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCheckpointMismatch);
    return error.message();
  }
  return "no error";
}

TEST(OptimizerState, UsesNamesOfParametersAndOfFields) {
  Trainee trainee(maker<optim::AdamW>(optim::AdamWOptions(0.01)), 1);
  trainee.train(0, 1);

  const auto saved = checkpoint::save_optimizer(*trainee.optimizer,
                                                checkpoint::ParameterNames({trainee.net.get()}));

  EXPECT_TRUE(saved.tensors.contains("first.weight.exp_avg"));
  EXPECT_TRUE(saved.tensors.contains("norm.bias.exp_avg_sq"));
  EXPECT_THAT(saved.json, HasSubstr("\"type\": \"AdamW\""));
  EXPECT_THAT(saved.json, HasSubstr("\"step\": 1"));
}

TEST(OptimizerState, ParametersOfSeveralModelsAndOfNoneHaveNamesOfTheirOwn) {
  torch::nn::Linear a(2, 2);
  torch::nn::Linear b(2, 2);
  const at::Tensor loose = at::ones({3}, at::requires_grad());
  const checkpoint::ParameterNames names({a.get(), b.get()});

  EXPECT_EQ(names.name_of(a->weight, 0, 0), "weight");
  EXPECT_EQ(names.name_of(b->weight, 0, 0), "model_1:weight");
  EXPECT_EQ(names.name_of(loose, 2, 5), "group_2:5");
}

TEST(OptimizerState, DifferencesAreNamed) {
  const MakeOptimizer adamw = maker<optim::AdamW>(optim::AdamWOptions(0.01));
  Trainee saved(adamw, 1);
  saved.train(0, 1);
  Trainee sgd(maker<optim::SGD>(optim::SGDOptions(0.1)), 1);
  EXPECT_THAT(mismatch_of(*saved.optimizer, {saved.net.get()}, *sgd.optimizer, {sgd.net.get()}),
              HasSubstr("was saved from AdamW, but is SGD now"));

  optim::AdamW fewer(saved.net->first->parameters(), optim::AdamWOptions(0.01));
  EXPECT_THAT(mismatch_of(*saved.optimizer, {saved.net.get()}, fewer, {saved.net.get()}),
              HasSubstr("was saved with 6 parameters in group 0, but has 2 now"));

  std::vector<at::Tensor> reversed = saved.net->parameters();
  std::reverse(reversed.begin(), reversed.end());
  optim::AdamW other_order(reversed, optim::AdamWOptions(0.01));
  EXPECT_THAT(mismatch_of(*saved.optimizer, {saved.net.get()}, other_order, {saved.net.get()}),
              HasSubstr("first.weight as parameter 0 of group 0, but has last.bias there now"));

  SmallNet wide(9);
  optim::AdamW wider(wide->parameters(), optim::AdamWOptions(0.01));
  EXPECT_THAT(mismatch_of(*saved.optimizer, {saved.net.get()}, wider, {wide.get()}),
              HasSubstr("first.weight.exp_avg"));
}

// An optimizer that prepare() has not seen lists a tied parameter twice, and one that it has seen once.
struct TiedTrainee {
  TiedTrainee(const MakeOptimizer& make, bool lists_twice)
      : optimizer(make(lists_twice ? net->parameters() : net->once())) {
    torch::manual_seed(3);
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : net->once()) parameter.copy_(at::randn_like(parameter));
  }

  void train() {
    optimizer->step([&] {
      optimizer->zero_grad();
      at::Tensor loss = net(at::ones({2, 6})).square().mean();
      loss.backward();
      return loss;
    });
  }
  [[nodiscard]] checkpoint::ParameterNames names() const {
    return checkpoint::ParameterNames({net.ptr().get()});
  }

  test::TiedNet net;
  std::unique_ptr<optim::Optimizer> optimizer;
};

TEST(OptimizerState, OfATiedParameterIsWrittenAndReadOnceHoweverOftenItIsListed) {
  const MakeOptimizer adamw = maker<optim::AdamW>(optim::AdamWOptions(0.01));
  for (const bool saves_twice : {false, true}) {
    for (const bool loads_twice : {false, true}) {
      TiedTrainee saved(adamw, saves_twice);
      saved.train();
      const checkpoint::ParameterNames names = saved.names();
      const auto written = checkpoint::save_optimizer(*saved.optimizer, names);
      TiedTrainee loaded(adamw, loads_twice);

      checkpoint::prepare_optimizer_load(*loaded.optimizer, loaded.names(), written, "optimizer")();
      const auto again = checkpoint::save_optimizer(*loaded.optimizer, loaded.names());

      EXPECT_EQ(written.tensors.size(), 8u);  // two of four parameters
      EXPECT_EQ(again.json, written.json);
      for (const auto& [name, tensor] : written.tensors)
        EXPECT_THAT(again.tensors.at(name), SameTensor(tensor)) << name;
      loaded.train();
    }
  }
}

// As it was written while prepare() left such lists as they were.
TEST(OptimizerState, OfAFileThatNamesATiedParameterTwiceIsRead) {
  const MakeOptimizer adamw = maker<optim::AdamW>(optim::AdamWOptions(0.01));
  TiedTrainee saved(adamw, false);
  saved.train();
  auto written = checkpoint::save_optimizer(*saved.optimizer, saved.names());
  auto root = nlohmann::json::parse(written.json);
  root["param_groups"][0]["params"].push_back("first.weight");
  written.json = root.dump();
  TiedTrainee loaded(adamw, false);

  checkpoint::prepare_optimizer_load(*loaded.optimizer, loaded.names(), written, "optimizer")();

  const auto again = checkpoint::save_optimizer(*loaded.optimizer, loaded.names());
  EXPECT_THAT(again.tensors.at("first.weight.exp_avg"),
              SameTensor(written.tensors.at("first.weight.exp_avg")));
}

TEST(OptimizerState, OfAnLbfgsThatListedATiedParameterTwiceIsRefusedByOneThatListsItOnce) {
  const MakeOptimizer lbfgs = maker<optim::LBFGS>(optim::LBFGSOptions(0.1).max_iter(3));
  TiedTrainee saved(lbfgs, true);
  saved.train();
  TiedTrainee loaded(lbfgs, false);

  EXPECT_THAT(
      mismatch_of(
          *saved.optimizer, {saved.net.ptr().get()}, *loaded.optimizer, {loaded.net.ptr().get()}),
      HasSubstr("of 120 elements for parameters of 84"));
}

class HandMadeOptimizer : public optim::Optimizer {
 public:
  explicit HandMadeOptimizer(std::vector<at::Tensor> parameters)
      : Optimizer(std::move(parameters), std::make_unique<optim::SGDOptions>(0.1)) {}
  at::Tensor step(LossClosure) override { return {}; }
};

class StatefulOptimizer final : public HandMadeOptimizer, public Stateful {
 public:
  using HandMadeOptimizer::HandMadeOptimizer;
  StateDict state_dict() const override {
    return {.tensors = {{"slow", slow}}, .values = {{"k", std::int64_t{6}}}};
  }
  void load_state_dict(const StateDict& state) override { slow = state.tensors.at("slow"); }
  at::Tensor slow = at::ones({2});
};

TEST(OptimizerState, OptimizerOfTheUsersOwnIsSavedWhenItHasAState) {
  torch::nn::Linear net(2, 2);
  StatefulOptimizer saved(net->parameters());
  saved.slow = at::ones({2}).mul(5);
  StatefulOptimizer loaded(net->parameters());
  const checkpoint::ParameterNames names({net.get()});

  checkpoint::prepare_optimizer_load(
      loaded, names, checkpoint::save_optimizer(saved, names), "optimizer")();

  EXPECT_THAT(loaded.slow, SameTensor(saved.slow));
  HandMadeOptimizer without_state(net->parameters());
  try {
    std::ignore = checkpoint::save_optimizer(without_state, names);
    FAIL() << "an optimizer without a known state was saved";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.message(), HasSubstr("HandMadeOptimizer"));
    EXPECT_THAT(error.remedy(), HasSubstr("accel::Stateful"));
  }
}

}  // namespace
}  // namespace accel::optimizer_state_test
