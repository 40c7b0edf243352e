// Loss scaling changes no weight: loops in which gradients are clipped and not stepped give the same bits with it as without.
// The scale is always a power of two and forwards run in fp32, so that nothing is rounded by it.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/random.h>

#include "tests/support/rank_group.h"

namespace accel::scaled_gradients_test {
namespace {

using torch::nn::Linear;
using torch::optim::SGD;
using torch::optim::SGDOptions;

constexpr double kRate = 0.125;
constexpr double kMaxNorm = 0.25;

// [3, 4], of this rank.
at::Tensor batch(const Accelerator& accelerator) {
  return (at::arange(12, at::kFloat).view({3, 4}) + accelerator.process_index()) / 8.0;
}

at::Tensor values_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& parameter : module.parameters())
    parts.push_back(parameter.detach().flatten());
  return at::cat(parts);
}

enum class Clears { kOptimizer, kModule };
enum class Clips { kNo, kYes };

// The generator's loss gives the discriminator gradients too; its clip divides all by the scale, and its step may change that.
at::Tensor two_optimizers(Accelerator& accelerator, Clears clears, Clips clips) {
  Linear generator(4, 4);
  Linear discriminator(4, 1);
  SGD generator_sgd(generator->parameters(), SGDOptions(kRate));
  SGD discriminator_sgd(discriminator->parameters(), SGDOptions(kRate));
  auto [make, judge, make_step, judge_step] =
      accelerator.prepare(generator, discriminator, generator_sgd, discriminator_sgd);
  for (int round = 0; round < 3; ++round) {
    accelerator.backward(judge(make(batch(accelerator))).mean());
    if (clips == Clips::kYes) accelerator.clip_grad_norm_(generator->parameters(), kMaxNorm);
    make_step.step();
    make_step.zero_grad();

    at::Tensor made;
    {
      const at::NoGradGuard no_grad;
      made = make(batch(accelerator));
    }
    if (clears == Clears::kModule) discriminator->zero_grad();
    accelerator.backward(judge(at::cat({batch(accelerator), -made})).mean());
    judge_step.step();
    if (clears == Clears::kOptimizer) judge_step.zero_grad();
  }
  return at::cat({values_of(*generator), values_of(*discriminator)});
}

// One batch is clipped and left out.
at::Tensor left_out(Accelerator& accelerator) {
  Linear net(4, 1);
  SGD sgd(net->parameters(), SGDOptions(kRate));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  at::Tensor norm;
  for (int step = 0; step < 3; ++step) {
    accelerator.backward(model(batch(accelerator)).square().mean());
    norm = accelerator.clip_grad_norm_(net->parameters(), kMaxNorm);
    if (step == 0) {
      net->zero_grad();
      continue;
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  return at::cat({values_of(*net), norm.view({1})});
}

// The gradient of a second loss is added to one that was clipped.
at::Tensor added_to(Accelerator& accelerator) {
  Linear net(4, 1);
  SGD sgd(net->parameters(), SGDOptions(kRate));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int loss = 0; loss < 2; ++loss) {
    accelerator.backward(model(batch(accelerator)).square().mean());
    accelerator.clip_grad_norm_(net->parameters(), kMaxNorm);
  }
  optimizer.step();
  return values_of(*net);
}

at::Tensor begun_anew(Accelerator& accelerator) {
  Linear net(4, 1);
  std::optional<SGD> sgd;  // at one address
  for (int training = 0; training < 2; ++training) {
    sgd.emplace(net->parameters(), SGDOptions(kRate));
    auto [model, optimizer] = accelerator.prepare(net, *sgd);
    accelerator.backward(model(batch(accelerator)).square().mean());
    if (training == 0) {
      accelerator.clip_grad_norm_(net->parameters(), kMaxNorm);
    } else {
      optimizer.step();
    }
    accelerator.free_memory();
    net->zero_grad();
  }
  return values_of(*net);
}

enum class Divided { kNo, kYes };

enum class Scale { kNone, kConstant, kGrows };  // grows: with each step of an optimizer

AcceleratorOptions options(Scale scale, Divided divided) {
  AcceleratorOptions options{.mixed_precision = "fp16",
                             .grad_scaler = {.init_scale = 256.0,
                                             .growth_interval = scale == Scale::kGrows ? 1 : 2000,
                                             .enabled = scale != Scale::kNone},
                             .autocast = {.enabled = false}};
  if (divided == Divided::kYes) options.fsdp_plugin = FullyShardedDataParallelPlugin{};
  return options;
}

void expect_scaling_changes_nothing(Divided divided) {
  std::vector<std::pair<std::string, std::function<at::Tensor(Accelerator&)>>> loops = {
      {"two optimizers",
       [](Accelerator& a) { return two_optimizers(a, Clears::kOptimizer, Clips::kYes); }},
      {"two that do not clip",
       [](Accelerator& a) { return two_optimizers(a, Clears::kOptimizer, Clips::kNo); }},
      {"a batch left out", left_out},
      {"two losses", added_to},
      {"begun anew after free_memory()", begun_anew}};
  if (divided == Divided::kNo) {  // the module's zero_grad() does not reach the gradients of shards
    loops.emplace_back("two, cleared by module", [](Accelerator& a) {
      return two_optimizers(a, Clears::kModule, Clips::kYes);
    });
  }
  for (const auto& [name, loop] : loops) {
    std::vector<at::Tensor> results;
    for (const Scale scale : {Scale::kNone, Scale::kConstant, Scale::kGrows}) {
      Accelerator accelerator(options(scale, divided));
      set_seed(11);
      results.push_back(loop(accelerator));
    }
    EXPECT_TRUE(results[1].equal(results[0])) << name << '\n' << results[0] << results[1];
    EXPECT_TRUE(results[2].equal(results[0])) << name << ", grows\n" << results[0] << results[2];
  }
}

TEST(ScaledGradients, TrainAsUnscaledOnesOnOneProcess) {
  expect_scaling_changes_nothing(Divided::kNo);
  PartialState::reset();
}

TEST(ScaledGradients, TrainAsUnscaledOnesOnCopies) {
  test::run_ranks(2, [] { expect_scaling_changes_nothing(Divided::kNo); });
}

TEST(ScaledGradients, TrainAsUnscaledOnesOnDividedModels) {
  test::run_ranks(2, [] { expect_scaling_changes_nothing(Divided::kYes); });
}

}  // namespace
}  // namespace accel::scaled_gradients_test
