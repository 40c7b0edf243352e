// One process: what prepare() returns, and when the wrapped optimizer and scheduler move.

#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/error.h>

#include "tests/support/scratch_folder.h"

namespace accel::accelerator_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct PairNetImpl : torch::nn::Module {
  torch::nn::Linear left{nullptr};
  torch::nn::Linear right{nullptr};

  PairNetImpl() {
    left = register_module("left", torch::nn::Linear(2, 2));
    right = register_module("right", torch::nn::Linear(2, 2));
  }
  std::tuple<at::Tensor, std::vector<at::Tensor>> forward(const at::Tensor& input) {
    return {left(input), {right(input)}};
  }
};
TORCH_MODULE(PairNet);

// Pretends to be a loader that is being iterated.
class FakeLoader final : public ActiveDataLoader {
 public:
  explicit FakeLoader(GradientState state) : state_(state) { state_.add_dataloader(this); }
  ~FakeLoader() override { state_.remove_dataloader(this); }
  [[nodiscard]] bool end_of_dataloader() const override { return at_end; }
  [[nodiscard]] std::int64_t remainder() const override { return 0; }
  bool at_end = false;

 private:
  GradientState state_;
};

// A schedule that is nothing but step() and a state.
struct CountingSchedule final : Stateful {
  int steps = 0;
  void step() { ++steps; }
  [[nodiscard]] StateDict state_dict() const override {
    return {.tensors = {}, .values = {{"steps", std::int64_t{steps}}}};
  }
  void load_state_dict(const StateDict& state) override {
    steps = static_cast<int>(std::get<std::int64_t>(state.values.at("steps")));
  }
};

class AcceleratorTest : public ::testing::Test {
 protected:
  void TearDown() override { PartialState::reset(); }

  torch::nn::Linear net_{2, 1};
  torch::optim::SGD sgd_{net_->parameters(), torch::optim::SGDOptions(1.0)};

  static double lr_of(const torch::optim::Optimizer& optimizer) {
    return optimizer.param_groups()[0].options().get_lr();
  }
  static LambdaLR falling(torch::optim::Optimizer& optimizer) {
    return LambdaLR(optimizer, [](std::int64_t step) { return 1.0 - 0.1 * step; });
  }
};

TEST_F(AcceleratorTest, PreparesAnyMixInTheOrderGiven) {
  Accelerator accelerator;
  LambdaLR schedule = falling(sgd_);

  auto [scheduler, model, optimizer] = accelerator.prepare(schedule, net_, sgd_);

  static_assert(std::is_same_v<decltype(model), Prepared<torch::nn::Linear>>);
  static_assert(std::is_same_v<decltype(optimizer), AcceleratedOptimizer>);
  static_assert(std::is_same_v<decltype(scheduler), AcceleratedScheduler>);
  EXPECT_EQ(&optimizer.optimizer(), &sgd_);
  EXPECT_EQ(&scheduler.scheduler(), &schedule);
  EXPECT_TRUE(accelerator.unwrap_model(model).ptr() == net_.ptr());
}

TEST_F(AcceleratorTest, ASingleObjectComesBackWithoutATuple) {
  Accelerator accelerator;

  Prepared<torch::nn::Linear> model = accelerator.prepare(net_);

  EXPECT_TRUE(model(at::ones({1, 2})).equal(net_(at::ones({1, 2}))));
}

TEST_F(AcceleratorTest, PreparingTwiceGivesTheSameObjects) {
  Accelerator accelerator;
  auto [model, optimizer] = accelerator.prepare(net_, sgd_);

  auto [again, same_optimizer] = accelerator.prepare(model, optimizer);
  auto from_raw = accelerator.prepare(net_);

  EXPECT_EQ(again.runtime(), model.runtime());
  EXPECT_EQ(from_raw.runtime(), model.runtime());
  EXPECT_TRUE(same_optimizer == optimizer);
  EXPECT_TRUE(accelerator.prepare(sgd_) == optimizer);
}

TEST_F(AcceleratorTest, SharedPointersToModelAndOptimizerArePrepared) {
  Accelerator accelerator;
  auto module = std::make_shared<torch::nn::LinearImpl>(2, 1);
  auto shared =
      std::make_shared<torch::optim::SGD>(module->parameters(), torch::optim::SGDOptions(0.5));

  auto [model, optimizer] = accelerator.prepare(module, shared);

  static_assert(std::is_same_v<decltype(model), Prepared<std::shared_ptr<torch::nn::LinearImpl>>>);
  EXPECT_EQ(&optimizer.optimizer(), shared.get());
}

TEST_F(AcceleratorTest, AMovedOptimizerTakesItsSchedulerAlong) {
  Accelerator accelerator;
  LambdaLR schedule = falling(sgd_);

  auto [optimizer, scheduler] = accelerator.prepare(std::move(sgd_), schedule);
  scheduler.step();

  EXPECT_NEAR(lr_of(optimizer.optimizer()), 0.9, 1e-12);
}

TEST_F(AcceleratorTest, AnythingStatefulWithAStepIsAScheduler) {
  Accelerator accelerator;
  CountingSchedule schedule;

  AcceleratedScheduler scheduler = accelerator.prepare(schedule);
  scheduler.step();

  EXPECT_EQ(schedule.steps, 1);
  EXPECT_EQ(std::get<std::int64_t>(scheduler.state_dict().values.at("steps")), 1);
}

TEST_F(AcceleratorTest, NestedOutputsKeepTheirStructureUnderAutocast) {
  Accelerator accelerator({.mixed_precision = "bf16"});
  auto model = accelerator.prepare(PairNet());

  const auto [left, right] = model(at::ones({3, 2}));

  EXPECT_EQ(left.scalar_type(), at::kFloat);
  ASSERT_EQ(right.size(), 1U);
  EXPECT_EQ(right[0].scalar_type(), at::kFloat);
}

TEST_F(AcceleratorTest, AutocastRunsTheBlockInThePrecisionOfTheAccelerator) {
  Accelerator accelerator({.mixed_precision = PrecisionType::kBf16});
  at::ScalarType inside = at::kFloat;
  at::ScalarType switched_off = at::kBFloat16;
  {
    const auto scope = accelerator.autocast();
    inside = net_(at::ones({1, 2})).scalar_type();
    const auto full = accelerator.autocast({.enabled = false});
    switched_off = net_(at::ones({1, 2})).scalar_type();
  }

  EXPECT_EQ(inside, at::kBFloat16);
  EXPECT_EQ(switched_off, at::kFloat);
}

// Contract 4.10: 80 samples in batches of 16 give 5 batches; with 2 steps they sync at 1, 3 and 4.
TEST_F(AcceleratorTest, AccumulationSyncsEveryNumStepsAndAtTheEndOfTheLoader) {
  Accelerator accelerator({.gradient_accumulation_steps = 2});
  auto model = accelerator.prepare(net_);
  FakeLoader loader(accelerator.gradient_state());
  std::vector<int> synced_at;

  for (int epoch = 0; epoch < 2; ++epoch) {
    for (int batch = 0; batch < 5; ++batch) {
      loader.at_end = batch == 4;
      const auto scope = accelerator.accumulate(model);
      if (accelerator.sync_gradients()) synced_at.push_back(batch);
    }
  }

  EXPECT_THAT(synced_at, ElementsAre(1, 3, 4, 1, 3, 4));
}

TEST_F(AcceleratorTest, WithoutSyncWithDataloaderTheCountRunsOn) {
  Accelerator accelerator({.gradient_accumulation_plugin = GradientAccumulationPlugin{
                               .num_steps = 2, .sync_with_dataloader = false}});
  auto model = accelerator.prepare(net_);
  FakeLoader loader(accelerator.gradient_state());
  std::vector<int> synced_at;

  for (int batch = 0; batch < 5; ++batch) {
    loader.at_end = batch == 4;
    const auto scope = accelerator.accumulate(model);
    if (accelerator.sync_gradients()) synced_at.push_back(batch);
  }

  EXPECT_THAT(synced_at, ElementsAre(1, 3));
}

TEST_F(AcceleratorTest, AccumulatedBatchesEqualOneBigBatch) {
  Accelerator accelerator({.gradient_accumulation_steps = 2});
  torch::nn::Linear reference(2, 1);
  {
    const at::NoGradGuard no_grad;
    reference->weight.copy_(net_->weight);
    reference->bias.copy_(net_->bias);
  }
  auto [model, optimizer] = accelerator.prepare(net_, sgd_);
  const at::Tensor inputs = at::arange(8, at::kFloat).view({4, 2}) / 8;

  for (int half = 0; half < 2; ++half) {
    const auto scope = accelerator.accumulate(model);
    accelerator.backward(model(inputs.slice(0, 2 * half, 2 * half + 2)).square().mean());
    optimizer.step();
    if (half == 0) {
      EXPECT_TRUE(net_->weight.equal(reference->weight)) << "stepped too early";
    }
  }
  torch::optim::SGD big_step(reference->parameters(), torch::optim::SGDOptions(1.0));
  reference(inputs).square().mean().backward();
  big_step.step();

  // The mean of 4 and the mean of two means of 2 differ in rounding only: each gradient is a sum of
  // at most 4 products of order 1, so 8 roundings of 2^-24 bound the difference.
  EXPECT_TRUE(net_->weight.allclose(reference->weight, 0, 8 * std::pow(2.0, -24)));
}

// x^3 at 2: 12, and of a second order 12.
TEST_F(AcceleratorTest, BackwardKeepsTheGraphAndGivesGradientsOneWhenTold) {
  Accelerator accelerator;
  const at::Tensor x = at::full({}, 2.0).requires_grad_();
  const at::Tensor cube = x * x * x;

  accelerator.backward(cube, {.retain_graph = true});
  EXPECT_EQ(x.grad().item<float>(), 12.0F);
  x.mutable_grad().reset();
  accelerator.backward(cube, {.create_graph = true});
  const at::Tensor first = x.grad();
  x.mutable_grad().reset();
  accelerator.backward(first);

  EXPECT_EQ(x.grad().item<float>(), 12.0F);
}

TEST_F(AcceleratorTest, OptimizerAndSchedulerWaitWhileGradientsAccumulate) {
  Accelerator accelerator({.gradient_accumulation_plugin = GradientAccumulationPlugin{
                               .num_steps = 2, .adjust_scheduler = true}});
  LambdaLR schedule = falling(sgd_);
  auto [model, optimizer, scheduler] = accelerator.prepare(net_, sgd_, schedule);

  const auto scope = accelerator.accumulate(model);
  accelerator.backward(model(at::ones({1, 2})).sum());
  optimizer.step();
  scheduler.step();
  optimizer.zero_grad();

  EXPECT_TRUE(net_->weight.grad().defined()) << "zero_grad() dropped accumulated gradients";
  EXPECT_EQ(lr_of(sgd_), 1.0);
  EXPECT_EQ(schedule.last_epoch(), 0);
  EXPECT_EQ(schedule.step_count(), 2) << "adjust_scheduler counts the step without moving";
}

TEST_F(AcceleratorTest, TwoSchedulersFollowTheirOwnOptimizers) {
  Accelerator accelerator({.mixed_precision = "fp16"});
  torch::nn::Linear other(2, 1);
  torch::optim::SGD other_sgd(other->parameters(), torch::optim::SGDOptions(1.0));
  LambdaLR schedule = falling(sgd_);
  LambdaLR other_schedule = falling(other_sgd);
  auto [optimizer, other_optimizer, scheduler, other_scheduler] =
      accelerator.prepare(sgd_, other_sgd, schedule, other_schedule);
  const float nan = std::numeric_limits<float>::quiet_NaN();

  net_->weight.mutable_grad() = at::full({1, 2}, nan);
  other->weight.mutable_grad() = at::ones({1, 2});
  optimizer.step();
  other_optimizer.step();
  scheduler.step();
  other_scheduler.step();

  EXPECT_TRUE(optimizer.step_was_skipped());
  EXPECT_TRUE(accelerator.optimizer_step_was_skipped());
  EXPECT_EQ(lr_of(sgd_), 1.0) << "its optimizer skipped the step";
  EXPECT_NEAR(lr_of(other_sgd), 0.9, 1e-12);
}

// Contract 4.12: gradients ok, NaN, NaN, ok.
TEST_F(AcceleratorTest, StepWasSkippedFollowsTheGradients) {
  Accelerator accelerator({.mixed_precision = "fp16"});
  auto optimizer = accelerator.prepare(sgd_);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<bool> skipped;

  for (const float gradient : {1.0F, nan, nan, 1.0F}) {
    net_->weight.mutable_grad() = at::full({1, 2}, gradient);
    optimizer.step();
    skipped.push_back(optimizer.step_was_skipped());
  }

  EXPECT_THAT(skipped, ElementsAre(false, true, true, false));
}

TEST_F(AcceleratorTest, Fp16TrainsWithScaledLossAndUnscaledClipping) {
  // The default scale, 65536, overflows fp16 at once: its first steps are always left out.
  Accelerator accelerator({.mixed_precision = "fp16", .grad_scaler = {.init_scale = 1024.0}});
  auto [model, optimizer] = accelerator.prepare(net_, sgd_);

  accelerator.backward(model(at::ones({1, 2})).sum());
  const double raw = net_->bias.grad().item<double>();
  const at::Tensor norm = accelerator.clip_grad_norm_(model->parameters(), 100.0);

  EXPECT_EQ(raw, 1024.0);
  EXPECT_NEAR(norm.item<double>(), std::sqrt(3.0), 1e-6);
  EXPECT_EQ(net_->bias.grad().item<double>(), 1.0);
}

TEST_F(AcceleratorTest, ClippingFp16GradientsDuringAccumulationIsRefused) {
  Accelerator accelerator({.mixed_precision = "fp16", .gradient_accumulation_steps = 2});
  auto [model, optimizer] = accelerator.prepare(net_, sgd_);
  const auto scope = accelerator.accumulate(model);
  accelerator.backward(model(at::ones({1, 2})).sum());

  EXPECT_THROW(accelerator.clip_grad_norm_(model->parameters(), 1.0), Error);
}

TEST_F(AcceleratorTest, ClipGradNormScalesAllGradientsTogether) {
  Accelerator accelerator;
  net_->weight.mutable_grad() = at::full({1, 2}, 3.0);
  net_->bias.mutable_grad() = at::full({1}, std::sqrt(7.0));

  const at::Tensor norm = accelerator.clip_grad_norm_(net_->parameters(), 1.0);

  EXPECT_NEAR(norm.item<double>(), 5.0, 1e-6);
  EXPECT_NEAR(net_->weight.grad()[0][0].item<double>(), 0.6, 1e-6);
}

TEST_F(AcceleratorTest, ClipGradNormLeavesSmallGradientsAlone) {
  Accelerator accelerator;
  net_->weight.mutable_grad() = at::full({1, 2}, 0.25);

  accelerator.clip_grad_norm_(net_->parameters(), 1.0, std::numeric_limits<double>::infinity());

  EXPECT_EQ(net_->weight.grad()[0][0].item<double>(), 0.25);
}

TEST_F(AcceleratorTest, ClipGradValueCutsEachGradient) {
  Accelerator accelerator;
  net_->weight.mutable_grad() = at::full({1, 2}, -3.0);

  accelerator.clip_grad_value_(net_->parameters(), 0.5);

  EXPECT_EQ(net_->weight.grad()[0][1].item<double>(), -0.5);
}

TEST_F(AcceleratorTest, SchedulerThatIsNotLinkedStepsAlways) {
  Accelerator accelerator(
      {.gradient_accumulation_steps = 2, .step_scheduler_with_optimizer = false});
  LambdaLR schedule = falling(sgd_);
  auto [model, optimizer, scheduler] = accelerator.prepare(net_, sgd_, schedule);

  const auto scope = accelerator.accumulate(model);
  scheduler.step();
  scheduler.step();

  EXPECT_NEAR(lr_of(sgd_), 0.8, 1e-12);
}

TEST_F(AcceleratorTest, TriggerIsSeenOnceAndCleared) {
  Accelerator accelerator;
  const bool before = accelerator.check_trigger();
  accelerator.set_trigger();

  EXPECT_FALSE(before);
  EXPECT_TRUE(accelerator.check_trigger());
  EXPECT_FALSE(accelerator.check_trigger());
}

TEST_F(AcceleratorTest, StepsAndPluginTogetherAreRefused) {
  EXPECT_THROW(Accelerator({.gradient_accumulation_steps = 2,
                            .gradient_accumulation_plugin = GradientAccumulationPlugin{}}),
               Error);
}

TEST_F(AcceleratorTest, AnEmptyModuleHolderIsRefused) {
  Accelerator accelerator;
  torch::nn::Linear nothing{nullptr};

  EXPECT_THROW(accelerator.prepare(nothing), Error);
}

TEST_F(AcceleratorTest, LoadStateGoesOnFromTheNewestSaveStateInTheMiddleOfAnAccumulation) {
  const test::ScratchFolder scratch;
  const AcceleratorOptions options{
      .gradient_accumulation_steps = 3,
      .project_dir = scratch.path().string(),
      .project_config = {.automatic_checkpoint_naming = true, .total_limit = 1}};
  at::Tensor saved_weight;
  {
    Accelerator accelerator(options);
    LambdaLR schedule = falling(sgd_);
    CountingSchedule counter;
    auto [model, optimizer, scheduler] = accelerator.prepare(net_, sgd_, schedule);
    accelerator.register_for_checkpointing(counter);
    for (int batch = 0; batch < 4; ++batch) {
      const auto scope = accelerator.accumulate(model);
      accelerator.backward(model(at::ones({1, 2})).sum());
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      counter.step();
      accelerator.save_state();
    }
    saved_weight = net_->weight.detach().clone();
  }
  PartialState::reset();

  Accelerator accelerator(options);
  torch::nn::Linear net(2, 1);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1.0));
  LambdaLR schedule = falling(sgd);
  CountingSchedule counter;
  auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, schedule);
  accelerator.register_for_checkpointing(counter);
  const CheckpointInfo loaded = accelerator.load_state();

  EXPECT_EQ(loaded.iteration, 3);
  EXPECT_EQ(loaded.step, 4);
  EXPECT_EQ(accelerator.save_iteration(), 4);
  EXPECT_TRUE(net->weight.equal(saved_weight));
  EXPECT_NEAR(lr_of(sgd), 0.9, 1e-12);
  EXPECT_EQ(counter.steps, 4);
  std::vector<bool> synced;
  for (int batch = 4; batch < 6; ++batch) {
    const auto scope = accelerator.accumulate(model);
    synced.push_back(accelerator.sync_gradients());
  }
  EXPECT_THAT(synced, ElementsAre(false, true)) << "batch 5 is the sixth";
}

TEST_F(AcceleratorTest, SavingWithoutAFolderOrAProjectIsRefused) {
  Accelerator accelerator;

  EXPECT_THROW(accelerator.save_state(), Error);
}

TEST_F(AcceleratorTest, ProjectDirFillsTheLoggingDir) {
  Accelerator accelerator({.project_dir = "runs/a"});

  EXPECT_EQ(accelerator.project_dir(), "runs/a");
  EXPECT_EQ(accelerator.logging_dir(), "runs/a");
}

}  // namespace
}  // namespace accel::accelerator_test
