// FusedStep: what torch::optim computes, up to rounding, in as few calls as the memory allows.

#include "libaccel/engine/optim/fused_step.h"

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <accel/error.h>
#include <accel/optim.h>

namespace accel::fused_step_test {
namespace {

using ::testing::HasSubstr;
using torch::optim::Optimizer;

const FusedStep::IsPadded kNobody = [](const at::Tensor&) { return false; };
const FusedStep::IsPadded kEverybody = [](const at::Tensor&) { return true; };

at::Tensor waves(at::IntArrayRef shape, double start) {
  return at::sin(at::linspace(start, start + 7.0, c10::multiply_integers(shape))).view(shape);
}

std::vector<at::Tensor> parameters() {
  std::vector<at::Tensor> made{waves({5, 7}, 0.1), waves({3}, 0.2), waves({64, 33}, 0.3)};
  made.push_back(waves({8, 6}, 0.4).t());
  for (at::Tensor& parameter : made) parameter.requires_grad_(true);
  return made;
}

void set_gradients(const std::vector<at::Tensor>& parameters, int step) {
  for (const at::Tensor& parameter : parameters) {
    parameter.mutable_grad() = waves(parameter.sizes(), 1.0 + step);
  }
}

using Maker = std::function<std::unique_ptr<Optimizer>(std::vector<at::Tensor>)>;

template <typename O, typename Options>
Maker made_with(Options options) {
  return [options](std::vector<at::Tensor> list) {
    return std::make_unique<O>(std::move(list), options);
  };
}

struct Case {
  std::string name;
  Maker make;
};

std::vector<Case> cases() {
  using namespace torch::optim;  // NOLINT: the list below
  return {{"Sgd", made_with<SGD>(SGDOptions(0.1))},
          {"SgdMomentum", made_with<SGD>(SGDOptions(0.1).momentum(0.9).dampening(0.2))},
          {"SgdNesterov",
           made_with<SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.1))},
          {"Adam", made_with<Adam>(AdamOptions(0.01).weight_decay(0.1))},
          {"AdamAmsgrad", made_with<Adam>(AdamOptions(0.01).amsgrad(true))},
          {"AdamW", made_with<AdamW>(AdamWOptions(0.01).betas({0.8, 0.95}))},
          {"AdamWAmsgrad", made_with<AdamW>(AdamWOptions(0.01).amsgrad(true))}};
}

class FusedStepKinds : public ::testing::TestWithParam<Case> {};

// Each step rounds each of its few operations once more or less: 1e-7 of values about 1, in 6 steps. What a state of
// another rule, a wrong count of steps or a decay left out would make is above 1e-3.
TEST_P(FusedStepKinds, EqualsTheOptimizersOwnStepButForRounding) {
  const std::vector<at::Tensor> fused_list = parameters();
  const std::vector<at::Tensor> own_list = parameters();
  const auto fused = GetParam().make(fused_list);
  const auto own = GetParam().make(own_list);
  FusedStep step(*fused);

  for (int i = 0; i < 6; ++i) {
    set_gradients(fused_list, i);
    set_gradients(own_list, i);
    step.step(kNobody);
    own->step();
  }

  for (std::size_t p = 0; p < own_list.size(); ++p) {
    EXPECT_TRUE(at::allclose(fused_list[p], own_list[p], 1e-5, 1e-6)) << "parameter " << p;
  }
  EXPECT_EQ(fused->state().size(), own->state().size());
}

// The states of one are the other's: a run may change from one to the other at any step.
TEST_P(FusedStepKinds, GoesOnFromStatesOfTheOptimizersOwnSteps) {
  const std::vector<at::Tensor> mixed_list = parameters();
  const std::vector<at::Tensor> own_list = parameters();
  const auto mixed = GetParam().make(mixed_list);
  const auto own = GetParam().make(own_list);
  FusedStep step(*mixed);

  for (int i = 0; i < 6; ++i) {
    set_gradients(mixed_list, i);
    set_gradients(own_list, i);
    i % 2 == 0 ? (void)mixed->step() : step.step(kNobody);
    own->step();
  }

  for (std::size_t p = 0; p < own_list.size(); ++p) {
    EXPECT_TRUE(at::allclose(mixed_list[p], own_list[p], 1e-5, 1e-6)) << "parameter " << p;
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers,
                         FusedStepKinds,
                         ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

// Three parameters of 20, 16 and 5 elements, each at a multiple of 16, in one memory; their gradients in another.
struct Flat {
  at::Tensor values = waves({64}, 0.5);
  at::Tensor gradients = at::zeros({64});
  std::vector<at::Tensor> parameters;

  Flat() {
    for (const auto& [begin, numel] : kPlaces) {
      parameters.push_back(values.narrow(0, begin, numel).detach().requires_grad_(true));
    }
  }
  void set_gradients(int step) {
    gradients.copy_(waves({64}, 2.0 + step));
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      parameters[p].mutable_grad() = gradients.narrow(0, kPlaces[p].first, kPlaces[p].second);
    }
  }
  static inline const std::vector<std::pair<std::int64_t, std::int64_t>> kPlaces{
      {0, 20}, {32, 16}, {48, 5}};
};

const torch::optim::AdamWParamState& adamw_state(Optimizer& optimizer,
                                                 const at::Tensor& parameter) {
  return dynamic_cast<torch::optim::AdamWParamState&>(
      *optimizer.state().at(parameter.unsafeGetTensorImpl()));
}

TEST(FusedStep, StepsParametersOfOneMemoryAsOneTensor) {
  Flat flat;
  torch::optim::AdamW optimizer(flat.parameters, torch::optim::AdamWOptions(0.01));
  FusedStep step(optimizer);
  at::Tensor by_hand = flat.values.clone();
  at::Tensor mean = at::zeros({64});
  at::Tensor square = at::zeros({64});

  for (int i = 1; i <= 3; ++i) {
    flat.set_gradients(i);
    at::_fused_adamw_({by_hand},
                      {flat.gradients},
                      {mean},
                      {square},
                      {},
                      {at::full({}, double(i), at::kFloat)},
                      0.01,
                      0.9,
                      0.999,
                      0.01,
                      1e-8,
                      false,
                      false);
    step.step(kEverybody);
  }

  EXPECT_EQ(step.num_runs(), 1U);
  for (std::size_t p = 0; p < flat.parameters.size(); ++p) {
    const auto [begin, numel] = Flat::kPlaces[p];
    EXPECT_TRUE(at::equal(flat.parameters[p], by_hand.narrow(0, begin, numel)));
    EXPECT_TRUE(at::equal(adamw_state(optimizer, flat.parameters[p]).exp_avg(),
                          mean.narrow(0, begin, numel)));
    EXPECT_EQ(adamw_state(optimizer, flat.parameters[p]).step(), 3);
  }
}

TEST(FusedStep, LeavesMemoryBetweenParametersAloneUnlessItIsPadding) {
  Flat flat;
  const at::Tensor before = flat.values.clone();
  torch::optim::AdamW optimizer(flat.parameters, torch::optim::AdamWOptions(0.01));
  FusedStep step(optimizer);

  flat.set_gradients(1);
  step.step(kNobody);

  EXPECT_EQ(step.num_runs(), 2U);  // the second ends where the third begins
  EXPECT_TRUE(at::equal(flat.values.narrow(0, 20, 12), before.narrow(0, 20, 12)));
  EXPECT_TRUE(at::equal(flat.values.narrow(0, 53, 11), before.narrow(0, 53, 11)));
}

TEST(FusedStep, PassesParametersWithoutGradientByAndTakesThemUpLater) {
  Flat flat;
  Flat apart;
  torch::optim::AdamW optimizer(flat.parameters, torch::optim::AdamWOptions(0.01));
  torch::optim::AdamW own(apart.parameters, torch::optim::AdamWOptions(0.01));
  FusedStep step(optimizer);
  const at::Tensor before = flat.parameters[1].detach().clone();

  flat.set_gradients(1);
  apart.set_gradients(1);
  flat.parameters[1].mutable_grad().reset();
  apart.parameters[1].mutable_grad().reset();
  step.step(kEverybody);
  own.step();

  EXPECT_EQ(step.num_runs(), 2U);
  EXPECT_TRUE(at::equal(flat.parameters[1], before));
  EXPECT_EQ(optimizer.state().size(), 2U);

  flat.set_gradients(2);
  apart.set_gradients(2);
  step.step(kEverybody);
  own.step();

  EXPECT_EQ(step.num_runs(), 3U) << "members of a run have stepped equally often";
  for (std::size_t p = 0; p < flat.parameters.size(); ++p) {
    EXPECT_TRUE(at::allclose(flat.parameters[p], apart.parameters[p], 1e-5, 1e-6));
    EXPECT_EQ(adamw_state(optimizer, flat.parameters[p]).step(), p == 1 ? 1 : 2);
  }
}

// As load_state() does: each state in memory of its own.
TEST(FusedStep, GoesOnToTheBitAfterStatesWereLoaded) {
  Flat flat;
  Flat loaded;
  torch::optim::AdamW optimizer(flat.parameters, torch::optim::AdamWOptions(0.01));
  torch::optim::AdamW second(loaded.parameters, torch::optim::AdamWOptions(0.01));
  FusedStep step(optimizer);
  FusedStep second_step(second);

  for (int i = 0; i < 4; ++i) {
    flat.set_gradients(i);
    loaded.set_gradients(i);
    step.step(kEverybody);
    if (i == 2) {
      for (auto& [key, state] : second.state()) state = state->clone();
    }
    second_step.step(kEverybody);
  }

  EXPECT_EQ(second_step.num_runs(), 1U);
  for (std::size_t p = 0; p < flat.parameters.size(); ++p) {
    EXPECT_TRUE(at::equal(flat.parameters[p], loaded.parameters[p]));
  }
}

TEST(FusedStep, RefusesOptimizersWithoutAKernelByName) {
  torch::optim::RMSprop optimizer(parameters(), torch::optim::RMSpropOptions(0.01));
  try {
    const FusedStep step(optimizer);
    FAIL() << "RMSprop was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.message(), HasSubstr("RMSprop"));
    EXPECT_FALSE(error.remedy().empty());
  }
}

TEST(FusedStep, RefusesSparseGradientsBeforeItStepsAnything) {
  std::vector<at::Tensor> list = parameters();
  const at::Tensor before = list[0].detach().clone();
  torch::optim::SGD optimizer(list, torch::optim::SGDOptions(0.1));
  FusedStep step(optimizer);
  set_gradients(list, 0);
  list[2].mutable_grad() = list[2].grad().to_sparse();

  EXPECT_THROW(step.step(kNobody), Error);

  EXPECT_TRUE(at::equal(list[0], before));
}

TEST(AcceleratedOptimizer, LeavesAFusedStepOutWhenAGradientIsNotFinite) {
  std::vector<at::Tensor> list = parameters();
  const at::Tensor before = list[0].detach().clone();
  const AcceleratedOptimizer optimizer(
      std::make_shared<torch::optim::AdamW>(list, torch::optim::AdamWOptions(0.01)),
      std::make_shared<GradScaler>(GradScalerKwargs{.init_scale = 8.0}));
  optimizer.use_fused_kernels();

  set_gradients(list, 0);
  list[1].mutable_grad().fill_(std::numeric_limits<float>::infinity());
  optimizer.step();

  EXPECT_TRUE(optimizer.step_was_skipped());
  EXPECT_TRUE(at::equal(list[0], before));
  EXPECT_TRUE(optimizer->state().empty());

  set_gradients(list, 1);
  optimizer.step();

  EXPECT_FALSE(optimizer.step_was_skipped());
  EXPECT_FALSE(at::equal(list[0], before));
}

}  // namespace
}  // namespace accel::fused_step_test
