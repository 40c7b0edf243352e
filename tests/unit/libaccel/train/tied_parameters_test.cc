// A parameter under two names is one parameter, as in Python: stepped once, unscaled once, counted once, saved once.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/safetensors_file.h>

#include "libaccel/engine/checkpoint/states/optimizer_state.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/tied_net.h"

namespace accel::tied_parameters_test {
namespace {

using test::TiedNet;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using torch::optim::AdamW;
using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;
using torch::optim::OptimizerParamGroup;

TiedNet seeded_net() {
  torch::manual_seed(3);
  return TiedNet();
}

at::Tensor batch(int step) {
  return (at::arange(12, at::kFloat).view({2, 6}) + step) / 12.0;
}

at::Tensor values_of(const TiedNet& net) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& parameter : net->once()) parts.push_back(parameter.detach().flatten());
  return at::cat(parts);
}

// What Python's loop does: one process, each parameter once.
TiedNet trained_alone(int steps) {
  TiedNet net = seeded_net();
  AdamW adam(net->once(), AdamWOptions(0.01));
  for (int step = 0; step < steps; ++step) {
    net(batch(step)).square().mean().backward();
    adam.step();
    adam.zero_grad();
  }
  return net;
}

double norm_of_gradients(const TiedNet& net) {
  std::vector<at::Tensor> norms;
  for (const at::Tensor& parameter : net->once()) norms.push_back(parameter.grad().norm());
  return at::stack(norms).norm().item<double>();
}

class TiedParameters : public ::testing::Test {
 protected:
  void TearDown() override { PartialState::reset(); }

  template <typename Model>
  static void train(Accelerator& accelerator, Model& model, const AcceleratedOptimizer& optimizer) {
    for (int step = 0; step < 3; ++step) {
      accelerator.backward(model(batch(step)).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    }
  }

  TiedNet net_ = seeded_net();
};

TEST_F(TiedParameters, AreSteppedOnce) {
  Accelerator accelerator;
  AdamW adam(net_->parameters(), AdamWOptions(0.01));
  ASSERT_THAT(adam.param_groups()[0].params(), SizeIs(5));

  auto [model, optimizer] = accelerator.prepare(net_, adam);
  train(accelerator, model, optimizer);

  EXPECT_THAT(adam.param_groups()[0].params(), SizeIs(4));
  const auto& state = adam.state().at(net_->first->weight.unsafeGetTensorImpl());
  EXPECT_EQ(static_cast<const AdamWParamState&>(*state).step(), 3);
  EXPECT_TRUE(values_of(net_).equal(values_of(trained_alone(3))));
}

TEST_F(TiedParameters, AreSteppedOnceByFusedKernels) {
  Accelerator accelerator;
  AdamW adam(net_->parameters(), AdamWOptions(0.01));

  auto [model, optimizer] = accelerator.prepare(net_, adam);
  optimizer.use_fused_kernels();
  train(accelerator, model, optimizer);

  // Three steps of 0.01 differ by roundings; another step of one weight would move it by 0.01.
  EXPECT_TRUE(values_of(net_).allclose(values_of(trained_alone(3)), 0.0, 1e-5));
}

TEST_F(TiedParameters, StayInTheFirstOfTheirGroups) {
  Accelerator accelerator;
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(net_->first->parameters(), std::make_unique<AdamWOptions>(0.5));
  groups.emplace_back(net_->middle->parameters());
  groups.emplace_back(net_->last->parameters(), std::make_unique<AdamWOptions>(0.25));
  AdamW adam(std::move(groups), AdamWOptions(0.01));

  auto optimizer = accelerator.prepare(adam);

  ASSERT_THAT(adam.param_groups(), SizeIs(3));
  ASSERT_THAT(adam.param_groups()[0].params(), SizeIs(2));
  EXPECT_TRUE(adam.param_groups()[0].params()[0].is_same(net_->first->weight));
  EXPECT_EQ(adam.param_groups()[0].options().get_lr(), 0.5);
  EXPECT_THAT(adam.param_groups()[1].params(), SizeIs(2));
  EXPECT_THAT(adam.param_groups()[2].params(), SizeIs(0));
  EXPECT_EQ(adam.param_groups()[2].options().get_lr(), 0.25);
}

TEST_F(TiedParameters, ThatAreAddedAfterPrepareAreSteppedOnce) {
  Accelerator accelerator;
  AdamW adam(net_->middle->parameters(), AdamWOptions(0.01));
  auto [model, optimizer] = accelerator.prepare(net_, adam);

  std::vector<at::Tensor> others = net_->first->parameters();
  others.push_back(net_->last->weight);
  adam.add_param_group(OptimizerParamGroup(std::move(others)));
  train(accelerator, model, optimizer);

  EXPECT_THAT(adam.param_groups()[1].params(), SizeIs(2));
  EXPECT_TRUE(values_of(net_).equal(values_of(trained_alone(3))));
}

TEST_F(TiedParameters, AreUnscaledOnce) {
  Accelerator accelerator({.mixed_precision = "fp16", .grad_scaler = {.init_scale = 1024.0}});
  AdamW adam(net_->parameters(), AdamWOptions(0.01));
  auto optimizer = accelerator.prepare(adam);
  for (const at::Tensor& parameter : net_->once())
    parameter.mutable_grad() = at::full_like(parameter, 2048.0);

  accelerator.unscale_gradients();

  for (const at::Tensor& parameter : net_->once())
    EXPECT_TRUE(parameter.grad().eq(2.0).all().item<bool>());
}

// Also where no prepare() has seen the optimizer.
TEST_F(TiedParameters, AreUnscaledOnceByAScalerOfTheUsersOwn) {
  GradScaler scaler({.init_scale = 1024.0});
  AdamW adam(net_->parameters(), AdamWOptions(0.01));
  for (const at::Tensor& parameter : net_->once())
    parameter.mutable_grad() = at::full_like(parameter, 2048.0);

  scaler.unscale_(adam);

  EXPECT_TRUE(net_->last->weight.grad().eq(2.0).all().item<bool>());
}

TEST_F(TiedParameters, CountOnceInTheNormAndAreScaledOnce) {
  Accelerator accelerator;
  accelerator.backward(net_(batch(0)).square().mean());
  const double expected = norm_of_gradients(net_);
  const at::Tensor before = net_->first->weight.grad().clone();

  const double norm = accelerator.clip_grad_norm_(net_->parameters(), expected / 2).item<double>();

  EXPECT_NEAR(norm, expected, 1e-6 * expected);
  EXPECT_TRUE(net_->first->weight.grad().allclose(before / 2, 1e-4));
}

TEST_F(TiedParameters, CountOnceInWhatStatesWillTake) {
  const AdamW listed_twice(net_->parameters(), AdamWOptions(0.01));
  const AdamW listed_once(net_->once(), AdamWOptions(0.01));

  EXPECT_EQ(checkpoint::expected_state_bytes(listed_twice),
            checkpoint::expected_state_bytes(listed_once));
}

TEST_F(TiedParameters, OfAnLbfgsThatHasSteppedAreRefused) {
  Accelerator accelerator;
  torch::optim::LBFGS lbfgs(net_->parameters());
  lbfgs.step([&] {
    lbfgs.zero_grad();
    at::Tensor loss = net_(batch(0)).square().mean();
    loss.backward();
    return loss;
  });

  try {
    std::ignore = accelerator.prepare(lbfgs);
    FAIL() << "an LBFGS with a history of a parameter twice was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.message(), HasSubstr("lists 1 of 5 parameters of group 0 again"));
    EXPECT_THAT(error.remedy(), HasSubstr("before the first step"));
  }
}

// ---- classes of the user's own

// Keeps its states where nobody else sees them: by place in the list of parameters.
class ByPlace : public torch::optim::SGD {
 public:
  explicit ByPlace(std::vector<at::Tensor> parameters)
      : SGD(std::move(parameters), torch::optim::SGDOptions(0.1)) {
    for (const at::Tensor& parameter : param_groups()[0].params())
      momenta_.push_back(at::zeros_like(parameter));
  }
  void save(torch::serialize::OutputArchive& archive) const override { write(archive); }

 protected:
  virtual void write(torch::serialize::OutputArchive& /*archive*/) const {}
  [[nodiscard]] const std::vector<at::Tensor>& momenta() const { return momenta_; }

 private:
  std::vector<at::Tensor> momenta_;
};

// Writes what LibTorch's classes do, and more.
class ByPlaceToo final : public ByPlace {
 public:
  using ByPlace::ByPlace;

 private:
  void write(torch::serialize::OutputArchive& archive) const override {
    SGD::save(archive);
    archive.write("momenta", momenta().front());
  }
};

// Its states are in state(), by parameter.
class ByParameter final : public torch::optim::SGD {
 public:
  using SGD::SGD;
};

template <typename Own>
Error refusal_of(const TiedNet& net) {
  Accelerator accelerator;
  try {
    std::ignore = accelerator.prepare(std::make_shared<Own>(net->parameters()));
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kInternal, "it was taken");
}

TEST_F(TiedParameters, OfAClassThatMayKeepItsStatesByPlaceAreRefusedByName) {
  for (const Error& error : {refusal_of<ByPlace>(net_), refusal_of<ByPlaceToo>(net_)}) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.message(), HasSubstr("ByPlace"));
    EXPECT_THAT(error.message(), HasSubstr("lists 1 of 5 parameters of group 0 again"));
    EXPECT_THAT(error.remedy(), HasSubstr("each tied parameter once"));
  }
  EXPECT_THAT(refusal_of<ByPlaceToo>(net_).message(), HasSubstr("its save() also writes momenta"));
}

TEST_F(TiedParameters, OfAClassThatKeepsItsStatesByPlaceAreTakenWhereItListsThemOnce) {
  Accelerator accelerator;
  auto optimizer = accelerator.prepare(std::make_shared<ByPlace>(net_->once()));
  EXPECT_THAT(optimizer.optimizer().param_groups()[0].params(), SizeIs(4));
}

TEST_F(TiedParameters, OfAClassThatSavesItsStatesByParameterAreTakenOutOnce) {
  Accelerator accelerator;
  auto optimizer = accelerator.prepare(
      std::make_shared<ByParameter>(net_->parameters(), torch::optim::SGDOptions(0.1)));
  EXPECT_THAT(optimizer.optimizer().param_groups()[0].params(), SizeIs(4));
}

// ---- on ranks, through a checkpoint

struct Way {
  int ranks = 1;
  std::optional<ShardingStrategy> strategy = std::nullopt;  // std::nullopt: copies
  std::optional<int> zero_stage = std::nullopt;
};

AcceleratorOptions options_of(const Way& way) {
  AcceleratorOptions options;
  if (way.strategy)
    options.fsdp_plugin = FullyShardedDataParallelPlugin{.sharding_strategy = *way.strategy};
  if (way.zero_stage) options.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = way.zero_stage};
  return options;
}

// Every rank sees the same batch: the mean of 1 or 2 equal gradients has no rounding.
struct TrainingRun {
  explicit TrainingRun(const Way& way) : accelerator(options_of(way)), net(seeded_net()) {
    adam = std::make_shared<AdamW>(net->parameters(), AdamWOptions(0.01));
    auto [prepared, stepped] = accelerator.prepare(net, adam);
    model.emplace(prepared);
    optimizer.emplace(stepped);
  }

  void train(int begin, int end) {
    for (int step = begin; step < end; ++step) {
      accelerator.backward((*model)(batch(step)).square().mean());
      optimizer->step();
      optimizer->zero_grad();
    }
  }

  Accelerator accelerator;
  TiedNet net;
  std::shared_ptr<AdamW> adam;
  std::optional<Prepared<TiedNet>> model;
  std::optional<AcceleratedOptimizer> optimizer;
};

class TiedParametersResume : public ::testing::TestWithParam<std::tuple<Way, Way>> {};

TEST_P(TiedParametersResume, AndTrainAsOneProcess) {
  const auto [before, after] = GetParam();
  const test::ScratchFolder scratch;
  const std::filesystem::path& folder = scratch.path();
  test::run_ranks(before.ranks, [&, way = before] {
    TrainingRun run(way);
    run.train(0, 2);
    run.accelerator.save_state(folder / "state");
    run.train(2, 3);
    EXPECT_TRUE(values_of(run.net).equal(values_of(trained_alone(3))));
    TiedNet alone = trained_alone(3);
    alone(batch(3)).square().mean().backward();
    run.accelerator.backward((*run.model)(batch(3)).square().mean());
    const at::Tensor norm = run.accelerator.clip_grad_norm_(run.net->parameters(), 1e9);
    EXPECT_NEAR(norm.item<double>(), norm_of_gradients(alone), 1e-6);
  });
  test::run_ranks(after.ranks, [&, way = after] {
    TrainingRun run(way);
    run.train(5, 6);  // another state, which loading replaces
    run.accelerator.load_state(folder / "state");
    run.train(2, 5);
    EXPECT_TRUE(values_of(run.net).equal(values_of(trained_alone(5))));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Ways,
    TiedParametersResume,
    ::testing::Values(std::tuple(Way{}, Way{2, ShardingStrategy::kFullShard}),
                      std::tuple(Way{2, ShardingStrategy::kFullShard}, Way{2}),
                      std::tuple(Way{2, ShardingStrategy::kShardGradOp}, Way{1}),
                      std::tuple(Way{2, std::nullopt, 1}, Way{2, std::nullopt, 1})));

}  // namespace
}  // namespace accel::tied_parameters_test
