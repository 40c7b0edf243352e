// Options that are numbers: what makes no sense is refused by its name, before anything is done with it. NaN is among it: it
// passes every comparison that asks for too much or too little.

#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/precision.h>
#include <accel/schedulers.h>

#include "tests/support/rank_group.h"

namespace accel::number_options_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const double kNaN = std::nan("");
constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Attempt = std::function<void()>;

void expect_refused(const std::vector<std::pair<const char*, Attempt>>& rows) {
  for (const auto& [option, attempt] : rows) {
    try {
      attempt();
      ADD_FAILURE() << option << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << option;
      EXPECT_THAT(error.message(),
                  AllOf(HasSubstr(std::string(option) + " is "), HasSubstr("expected")));
    }
  }
}

Attempt scaler(GradScalerKwargs options) {
  return [options] { const GradScaler made(options); };
}

TEST(NumberOptions, OfTheGradScalerAreNamed) {
  expect_refused({{"init_scale", scaler({.init_scale = kNaN})},
                  {"init_scale", scaler({.init_scale = 0})},
                  {"init_scale", scaler({.init_scale = -1})},
                  {"init_scale", scaler({.init_scale = 1e39})},
                  {"growth_factor", scaler({.growth_factor = kNaN})},
                  {"growth_factor", scaler({.growth_factor = kInfinity})},
                  {"growth_factor", scaler({.growth_factor = 1})},
                  {"backoff_factor", scaler({.backoff_factor = kNaN})},
                  {"backoff_factor", scaler({.backoff_factor = 1})},
                  {"growth_interval", scaler({.growth_interval = 0})}});
}

torch::optim::SGD make_sgd() {
  return torch::optim::SGD({at::ones({1})}, torch::optim::SGDOptions(0.1));
}

Attempt one_cycle(const std::function<void(OneCycleOptions&)>& change) {
  return [change] {
    auto sgd = make_sgd();
    OneCycleOptions options{.max_lr = 0.1, .total_steps = 4};
    change(options);
    const OneCycleLR made(sgd, options);
  };
}

Attempt plateau(PlateauOptions options) {
  return [options] {
    auto sgd = make_sgd();
    const ReduceLROnPlateau made(sgd, options);
  };
}

TEST(NumberOptions, OfSchedulersAreNamed) {
  expect_refused(
      {{"max_lr", one_cycle([](auto& options) { options.max_lr = kNaN; })},
       {"pct_start", one_cycle([](auto& options) { options.pct_start = kNaN; })},
       {"div_factor", one_cycle([](auto& options) { options.div_factor = 0; })},
       {"final_div_factor", one_cycle([](auto& options) { options.final_div_factor = kInfinity; })},
       {"max_momentum", one_cycle([](auto& options) { options.max_momentum = kNaN; })},
       {"factor", plateau({.factor = kNaN})},
       {"factor", plateau({.factor = -0.5})},
       {"factor", plateau({.factor = 1})},
       {"threshold", plateau({.threshold = kNaN})},
       {"min_lr", plateau({.min_lr = kNaN})},
       {"eps", plateau({.eps = kNaN})},
       {"gamma", [] {
          auto sgd = make_sgd();
          const StepLR made(sgd, 2, kNaN);
        }}});
}

TEST(NumberOptions, OfFactorsAreNamed) {
  expect_refused(
      {{"num_cycles", [] { std::ignore = cosine_with_warmup({.num_cycles = kNaN}); }},
       {"lr_end", [] { std::ignore = polynomial_with_warmup({.lr_end = kNaN}, 0.1); }},
       {"power", [] { std::ignore = polynomial_with_warmup({.power = kInfinity}, 0.1); }},
       {"the base lr", [] { std::ignore = polynomial_with_warmup({}, kNaN); }},
       {"min_lr_ratio", [] { std::ignore = warmup_stable_decay({.min_lr_ratio = kNaN}); }}});
}

TEST(NumberOptions, OfClippingAreNamed) {
  test::run_ranks(1, [] {
    Accelerator accelerator;
    torch::nn::Linear net(2, 1);
    net->weight.mutable_grad() = at::ones({1, 2});
    const auto by_norm = [&](double max_norm, double norm_type) {
      return [&accelerator, &net, max_norm, norm_type] {
        accelerator.clip_grad_norm_(net->parameters(), max_norm, norm_type);
      };
    };
    const auto by_value = [&](double value) {
      return
          [&accelerator, &net, value] { accelerator.clip_grad_value_(net->parameters(), value); };
    };

    expect_refused({{"max_norm", by_norm(kNaN, 2)},
                    {"max_norm", by_norm(-1, 2)},
                    {"norm_type", by_norm(1, kNaN)},
                    {"clip_value", by_value(kNaN)},
                    {"clip_value", by_value(-0.5)}});

    // Who asks for the norm alone.
    accelerator.clip_grad_norm_(net->parameters(), kInfinity);
    EXPECT_TRUE(net->weight.grad().equal(at::ones({1, 2})));
  });
}

TEST(NumberOptions, OfTimeoutsAreNamed) {
  using std::chrono::milliseconds;
  test::run_ranks(1, [] {
    const auto joining = [](InitProcessGroupKwargs options) {
      return [options] {
        AcceleratorOptions all;
        all.init_process_group = options;
        const Accelerator made(all);
      };
    };

    expect_refused({{"timeout", joining({.timeout = milliseconds(0)})},
                    {"store_timeout", joining({.store_timeout = milliseconds(-1)})}});
  });
}

TEST(NumberOptions, ATimeoutMayBeForEver) {
  using std::chrono::milliseconds;
  test::run_ranks(2, [] {
    AcceleratorOptions options;
    options.init_process_group = {.timeout = milliseconds::max(),
                                  .store_timeout = milliseconds::max()};
    Accelerator accelerator(options);
    accelerator.wait_for_everyone();
    EXPECT_EQ(accelerator.reduce(at::ones({1})).item<float>(), 2);
    accelerator.wait_for_everyone();
  });
}

}  // namespace
}  // namespace accel::number_options_test
