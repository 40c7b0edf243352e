// Numbers against Python are in tests/peer/train_peer.py; here are the rules that need no peer.

#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <accel/error.h>
#include <accel/schedulers.h>

namespace accel::schedulers_test {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;

torch::optim::SGD make_sgd(double lr) {
  return torch::optim::SGD({at::ones({1}).set_requires_grad(true)}, torch::optim::SGDOptions(lr));
}

double lr_of(const torch::optim::Optimizer& optimizer, std::size_t group = 0) {
  return optimizer.param_groups()[group].options().get_lr();
}

TEST(LambdaLR, SetsTheFirstRateAtOnceAndMovesOnWithEachStep) {
  torch::optim::SGD optimizer = make_sgd(2.0);
  LambdaLR scheduler(optimizer, [](std::int64_t step) { return 1.0 - 0.1 * step; });
  const double first = lr_of(optimizer);

  scheduler.step();

  EXPECT_EQ(first, 2.0);
  EXPECT_DOUBLE_EQ(lr_of(optimizer), 1.8);
  EXPECT_EQ(scheduler.last_epoch(), 1);
  EXPECT_EQ(scheduler.step_count(), 2);
}

TEST(LambdaLR, EveryGroupMayHaveItsFactor) {
  using torch::optim::OptimizerParamGroup;
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{at::ones({1})},
                      std::make_unique<torch::optim::SGDOptions>(1.0));
  groups.emplace_back(std::vector<at::Tensor>{at::ones({1})},
                      std::make_unique<torch::optim::SGDOptions>(10.0));
  torch::optim::SGD optimizer(groups, torch::optim::SGDOptions(1.0));
  LambdaLR scheduler(
      optimizer,
      std::vector<LrFactor>{[](std::int64_t) { return 0.5; }, [](std::int64_t) { return 0.1; }});

  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(DoubleEq(0.5), DoubleEq(1.0)));
}

TEST(LambdaLR, AWrongNumberOfFactorsIsRefused) {
  torch::optim::SGD optimizer = make_sgd(1.0);

  EXPECT_THROW(LambdaLR(optimizer, std::vector<LrFactor>{}), Error);
}

TEST(StepLR, MultipliesAtEveryBoundary) {
  torch::optim::SGD optimizer = make_sgd(1.0);
  StepLR scheduler(optimizer, 2, 0.1);
  std::vector<double> rates;

  for (int i = 0; i < 4; ++i) {
    scheduler.step();
    rates.push_back(lr_of(optimizer));
  }

  EXPECT_THAT(rates, ElementsAre(DoubleEq(1.0), DoubleEq(0.1), DoubleEq(0.1), DoubleEq(0.1 * 0.1)));
}

// By hand from the formulas of deepspeed/runtime/lr_schedules.py.
TEST(WarmupLR, RisesWithTheLogarithmOfTheIterationAndStays) {
  torch::optim::SGD optimizer = make_sgd(7.0);
  WarmupLR scheduler(optimizer,
                     {.warmup_min_lr = 0.1, .warmup_max_lr = 1.1, .warmup_num_steps = 4});
  std::vector<double> rates = {lr_of(optimizer)};

  for (int i = 0; i < 6; ++i) {
    scheduler.step();
    rates.push_back(lr_of(optimizer));
  }

  EXPECT_THAT(rates,
              ElementsAre(DoubleEq(0.1),
                          DoubleEq(0.1),
                          DoubleEq(0.6),
                          DoubleEq(0.1 + std::log(3.0) / std::log(4.0)),
                          DoubleEq(1.1),
                          DoubleEq(1.1),
                          DoubleEq(1.1)));
}

TEST(WarmupDecayLR, RisesInALineAndFallsToTheMinimum) {
  torch::optim::SGD optimizer = make_sgd(7.0);
  WarmupDecayLR scheduler(
      optimizer,
      {.warmup_max_lr = 1.0, .warmup_num_steps = 2, .linear = true, .total_num_steps = 6});
  std::vector<double> rates;

  for (int i = 0; i < 8; ++i) {
    scheduler.step();
    rates.push_back(lr_of(optimizer));
  }

  EXPECT_THAT(rates,
              ElementsAre(0.0, 0.5, 1.0, DoubleEq(0.75), DoubleEq(0.5), DoubleEq(0.25), 0.0, 0.0));
  EXPECT_THROW(WarmupDecayLR(optimizer, {}), Error);
}

TEST(OneCycleLR, MovesBeta1AgainstTheRateAndStopsAtTheEnd) {
  torch::optim::AdamW optimizer({at::ones({1})}, torch::optim::AdamWOptions(1.0));
  OneCycleLR scheduler(optimizer, {.max_lr = 0.1, .total_steps = 10});
  const auto& options =
      static_cast<torch::optim::AdamWOptions&>(optimizer.param_groups()[0].options());
  const double beta_at_start = std::get<0>(options.betas());

  scheduler.step();
  scheduler.step();

  EXPECT_DOUBLE_EQ(beta_at_start, 0.95);
  EXPECT_DOUBLE_EQ(std::get<0>(options.betas()), 0.85);
  EXPECT_DOUBLE_EQ(lr_of(optimizer), 0.1);
  while (scheduler.may_step()) scheduler.step();
  EXPECT_EQ(scheduler.last_epoch(), 10);
  EXPECT_THROW(scheduler.step(), Error);
}

TEST(ReduceLROnPlateau, LowersTheRateAfterPatienceAndNotBelowTheMinimum) {
  torch::optim::SGD optimizer = make_sgd(1.0);
  ReduceLROnPlateau scheduler(optimizer, {.factor = 0.1, .patience = 1, .min_lr = 0.05});
  std::vector<double> rates;

  for (const double loss : {1.0, 1.0, 1.0, 1.0, 1.0, 1.0}) {
    scheduler.step(loss);
    rates.push_back(lr_of(optimizer));
  }

  EXPECT_THAT(rates,
              ElementsAre(1.0, 1.0, DoubleEq(0.1), DoubleEq(0.1), DoubleEq(0.05), DoubleEq(0.05)));
  EXPECT_THROW(scheduler.step(), Error);
}

TEST(Scheduler, StateContinuesWhereItWasSaved) {
  torch::optim::SGD first = make_sgd(1.0);
  LambdaLR saved(first, linear_with_warmup({.num_warmup_steps = 2, .num_training_steps = 10}));
  for (int i = 0; i < 5; ++i) saved.step();
  torch::optim::SGD second = make_sgd(1.0);
  LambdaLR loaded(second, linear_with_warmup({.num_warmup_steps = 2, .num_training_steps = 10}));

  loaded.load_state_dict(saved.state_dict());
  const double restored = lr_of(second);
  saved.step();
  loaded.step();

  EXPECT_DOUBLE_EQ(restored, 0.625);
  EXPECT_EQ(lr_of(second), lr_of(first));
}

TEST(Scheduler, PlateauStateKeepsItsCounters) {
  torch::optim::SGD first = make_sgd(1.0);
  ReduceLROnPlateau saved(first, {.patience = 1});
  saved.step(1.0);
  saved.step(1.0);
  torch::optim::SGD second = make_sgd(1.0);
  ReduceLROnPlateau loaded(second, {.patience = 1});

  loaded.load_state_dict(saved.state_dict());
  loaded.step(1.0);

  EXPECT_DOUBLE_EQ(lr_of(second), 0.1);
}

TEST(Scheduler, AStateOfOtherGroupsIsRefused) {
  torch::optim::SGD optimizer = make_sgd(1.0);
  StepLR scheduler(optimizer, 1);
  StateDict state = scheduler.state_dict();
  state.values["base_lrs"] = std::vector<double>{1.0, 1.0};

  EXPECT_THROW(scheduler.load_state_dict(state), Error);
}

TEST(LrFactors, WarmupStableDecayHasItsThreePhases) {
  const LrFactor factor = warmup_stable_decay({.num_warmup_steps = 2,
                                               .num_stable_steps = 3,
                                               .num_decay_steps = 4,
                                               .decay = DecayShape::kLinear,
                                               .min_lr_ratio = 0.2});

  EXPECT_DOUBLE_EQ(factor(1), 0.6);  // half way from 0.2 to 1
  EXPECT_DOUBLE_EQ(factor(4), 1.0);
  EXPECT_DOUBLE_EQ(factor(7), 0.6);
  EXPECT_DOUBLE_EQ(factor(9), 0.2);
}

TEST(LrFactors, PolynomialNeedsAnEndBelowTheBaseRate) {
  EXPECT_THROW(polynomial_with_warmup({.num_training_steps = 10, .lr_end = 0.1}, 0.1), Error);
}

}  // namespace
}  // namespace accel::schedulers_test
