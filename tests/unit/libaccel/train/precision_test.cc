#include <cmath>
#include <limits>
#include <vector>

#include <ATen/autocast_mode.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <accel/error.h>
#include <accel/precision.h>

namespace accel::precision_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

bool autocast_is_on() {
  return at::autocast::is_autocast_enabled(at::kCPU);
}

at::ScalarType type_of_product() {
  return at::mm(at::ones({2, 2}), at::ones({2, 2})).scalar_type();
}

TEST(Autocast, CastsInsideItsScopeOnly) {
  const at::ScalarType before = type_of_product();
  at::ScalarType inside = at::kFloat;
  {
    const Autocast scope(AutocastOptions{.dtype = at::kBFloat16});
    inside = type_of_product();
  }

  EXPECT_EQ(before, at::kFloat);
  EXPECT_EQ(inside, at::kBFloat16);
  EXPECT_EQ(type_of_product(), at::kFloat);
}

TEST(Autocast, NestedScopesRestoreTypeSwitchAndCache) {
  const Autocast outer(AutocastOptions{.dtype = at::kBFloat16});
  {
    const Autocast inner(
        AutocastOptions{.dtype = at::kHalf, .enabled = false, .cache_enabled = false});
    EXPECT_FALSE(autocast_is_on());
    EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
    EXPECT_EQ(type_of_product(), at::kFloat);
  }

  EXPECT_TRUE(autocast_is_on());
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), at::kBFloat16);
}

TEST(Autocast, OutermostScopeDropsTheCopiesOfParameters) {
  at::Tensor weight = at::ones({2, 2}).set_requires_grad(true);
  const auto product = [&] {
    const Autocast scope(AutocastOptions{.dtype = at::kBFloat16});
    return at::mm(at::ones({2, 2}), weight)[0][0].item<float>();
  };

  const float before = product();
  weight.detach().fill_(3.0);

  EXPECT_EQ(before, 2.0F);
  EXPECT_EQ(product(), 6.0F) << "the second scope used a stale copy of the parameter";
}

TEST(Autocast, EmptyScopeChangesNothing) {
  const Autocast scope;

  EXPECT_FALSE(autocast_is_on());
}

// One parameter of value 1, stepped by SGD with lr 1.
class GradScalerTest : public ::testing::Test {
 protected:
  at::Tensor weight_ = at::ones({2}).set_requires_grad(true);
  torch::optim::SGD optimizer_{{weight_}, torch::optim::SGDOptions(1.0)};

  void set_scaled_gradient(const GradScaler& scaler, float value) {
    weight_.mutable_grad() = at::ones({2}) * value * scaler.get_scale();
  }
};

TEST_F(GradScalerTest, ScaleTimesGradientIsUnscaledBeforeTheStep) {
  GradScaler scaler({.init_scale = 1024.0});
  (scaler.scale(weight_.sum())).backward();
  ASSERT_EQ(weight_.grad()[0].item<float>(), 1024.0F);

  const bool stepped = scaler.step(optimizer_);

  EXPECT_TRUE(stepped);
  EXPECT_EQ(weight_[0].item<float>(), 0.0F);
}

// The peer's sequence of contract 4.12: ok, NaN, NaN, ok.
TEST_F(GradScalerTest, StepsAreLeftOutWhileGradientsAreNotFinite) {
  GradScaler scaler;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<bool> stepped;
  std::vector<double> scales;

  for (const float gradient : {1.0F, nan, nan, 1.0F}) {
    set_scaled_gradient(scaler, gradient);
    stepped.push_back(scaler.step(optimizer_));
    scaler.update();
    scales.push_back(scaler.get_scale());
  }

  EXPECT_THAT(stepped, ElementsAre(true, false, false, true));
  EXPECT_THAT(scales, ElementsAre(65536.0, 32768.0, 16384.0, 16384.0));
  EXPECT_EQ(weight_[0].item<float>(), -1.0F);
}

TEST_F(GradScalerTest, ScaleGrowsAfterTheIntervalAndTheTrackerStartsAnew) {
  GradScaler scaler({.init_scale = 4.0, .growth_interval = 3});
  std::vector<double> scales;
  std::vector<std::int64_t> trackers;

  for (int i = 0; i < 4; ++i) {
    set_scaled_gradient(scaler, 0.0F);
    scaler.step(optimizer_);
    scaler.update();
    scales.push_back(scaler.get_scale());
    trackers.push_back(scaler.growth_tracker());
  }

  EXPECT_THAT(scales, ElementsAre(4.0, 4.0, 8.0, 8.0));
  EXPECT_THAT(trackers, ElementsAre(1, 2, 0, 1));
}

// By hand from update_scale() of deepspeed/runtime/fp16/loss_scaler.py.
TEST_F(GradScalerTest, PassesOverOverflowsAndStopsAtTheMinimumAsDeepSpeedsDoes) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto scales_of = [&](GradScalerKwargs options, const std::vector<float>& gradients) {
    GradScaler scaler(options);
    std::vector<double> scales;
    for (const float gradient : gradients) {
      set_scaled_gradient(scaler, gradient);
      EXPECT_EQ(scaler.step(optimizer_), !std::isnan(gradient));
      scaler.update();
      GradScaler resumed(options);
      resumed.load_state_dict(scaler.state_dict());
      scaler = std::move(resumed);
      scales.push_back(scaler.get_scale());
    }
    return scales;
  };

  EXPECT_THAT(scales_of({.init_scale = 256, .growth_interval = 3, .min_scale = 64, .hysteresis = 2},
                        {nan, nan, nan, nan, 0, 0, 0, nan, nan}),
              ElementsAre(256, 128, 64, 64, 64, 64, 128, 128, 64));
  EXPECT_THAT(scales_of({.init_scale = 256, .hysteresis = 2, .consecutive_hysteresis = true},
                        {nan, 0, nan, 0, nan, nan}),
              ElementsAre(256, 256, 256, 256, 256, 128));
  EXPECT_THAT(scales_of({.init_scale = 128, .growth_interval = 1, .dynamic = false}, {nan, 0, 0}),
              ElementsAre(128, 128, 128));
}

TEST_F(GradScalerTest, UnscalingTwiceIsAnError) {
  GradScaler scaler;
  set_scaled_gradient(scaler, 1.0F);
  scaler.unscale_(optimizer_);

  EXPECT_THROW(scaler.unscale_(optimizer_), Error);
}

TEST_F(GradScalerTest, UpdateKeepsWhatAnotherOptimizerUnscaledBeforeItsStep) {
  at::Tensor other_weight = at::ones({1}).set_requires_grad(true);
  torch::optim::SGD other({other_weight}, torch::optim::SGDOptions(1.0));
  GradScaler scaler({.init_scale = 8.0});
  set_scaled_gradient(scaler, 1.0F);
  other_weight.mutable_grad() = at::ones({1}) * 8.0;
  scaler.unscale_(optimizer_);
  scaler.unscale_(other);

  scaler.step(optimizer_);
  scaler.update();
  scaler.step(other);

  EXPECT_EQ(other_weight.item<float>(), 0.0F) << "its gradient of 1 was divided by the scale twice";
}

TEST_F(GradScalerTest, AStepUnscalesByTheScaleOfItsBackwardWhateverTheStepBeforeHasChanged) {
  at::Tensor other_weight = at::ones({1}).set_requires_grad(true);
  torch::optim::SGD other({other_weight}, torch::optim::SGDOptions(1.0));
  GradScaler scaler({.init_scale = 8.0, .growth_interval = 1});
  scaler.scale(weight_.sum() + other_weight.sum()).backward();

  scaler.step(optimizer_);
  scaler.update();
  scaler.step(other);

  EXPECT_EQ(scaler.get_scale(), 16.0);
  EXPECT_EQ(other_weight.item<float>(), 0.0F) << "its gradient is 1";
}

TEST_F(GradScalerTest, ForgottenGradientsThatAreStillThereAreScaledAgain) {
  GradScaler scaler({.init_scale = 8.0});
  set_scaled_gradient(scaler, 1.0F);

  scaler.forget(optimizer_);
  const float before = weight_.grad()[0].item<float>();
  scaler.unscale_(optimizer_);
  scaler.forget(optimizer_);
  scaler.forget(optimizer_);

  EXPECT_EQ(before, 8.0F) << "it was not unscaled";
  EXPECT_EQ(weight_.grad()[0].item<float>(), 8.0F);
  EXPECT_TRUE(scaler.ensure_unscaled(optimizer_));
}

TEST_F(GradScalerTest, Fp16GradientsAreRefused) {
  at::Tensor half = at::ones({1}, at::kHalf).set_requires_grad(true);
  torch::optim::SGD optimizer({half}, torch::optim::SGDOptions(1.0));
  half.mutable_grad() = at::ones({1}, at::kHalf);
  GradScaler scaler;

  try {
    scaler.step(optimizer);
    FAIL() << "stepped on fp16 gradients";
  } catch (const Error& error) {
    EXPECT_THAT(error.remedy(), HasSubstr("fp32"));
  }
}

TEST_F(GradScalerTest, StateGoesThroughASaveWithPythonsNames) {
  GradScaler saved({.init_scale = 16.0, .growth_interval = 5});
  set_scaled_gradient(saved, 0.0F);
  saved.step(optimizer_);
  saved.update();
  const StateDict state = saved.state_dict();
  GradScaler loaded;

  loaded.load_state_dict(state);

  EXPECT_EQ(state.values.size(), 5U);
  EXPECT_TRUE(state.values.contains("_growth_tracker"));
  EXPECT_EQ(loaded.get_scale(), 16.0);
  EXPECT_EQ(loaded.growth_tracker(), 1);
}

TEST_F(GradScalerTest, AStateWithoutAKeyIsRefusedByName) {
  GradScaler scaler;
  StateDict state = scaler.state_dict();
  state.values.erase("growth_factor");

  try {
    scaler.load_state_dict(state);
    FAIL() << "loaded an incomplete state";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCheckpointMismatch);
    EXPECT_THAT(error.message(), HasSubstr("growth_factor"));
  }
}

}  // namespace
}  // namespace accel::precision_test
