// Members of the Accelerator that the other tests only pass through, on one process and on several.

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/dataloader.h>
#include <accel/error.h>

#include "libaccel/engine/process/process_group.h"
#include "tests/support/error_of.h"
#include "tests/support/rank_group.h"

namespace accel::accelerator_members_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Count final : Stateful {
  [[nodiscard]] StateDict state_dict() const override { return {}; }
  void load_state_dict(const StateDict& /*state*/) override {}
};

struct Numbers {
  [[nodiscard]] at::Tensor get(std::size_t index) const {
    return at::full({}, static_cast<std::int64_t>(index), at::kLong);
  }
  [[nodiscard]] std::size_t size() const { return count; }
  std::size_t count = 4;
};

class AcceleratorMembers : public ::testing::Test {
 protected:
  void TearDown() override { PartialState::reset(); }

  static LambdaLR falling(torch::optim::Optimizer& optimizer) {
    return LambdaLR(optimizer, [](std::int64_t step) { return 1.0 - 0.1 * step; });
  }

  torch::nn::Linear net_{2, 1};
  std::shared_ptr<torch::optim::SGD> sgd_ =
      std::make_shared<torch::optim::SGD>(net_->parameters(), torch::optim::SGDOptions(1.0));
};

TEST_F(AcceleratorMembers, FreeMemoryForgetsWhatWasPreparedAndRegistered) {
  Accelerator accelerator;
  LambdaLR schedule = falling(*sgd_);
  Count count;
  {
    auto [model, optimizer, loader, scheduler] =
        accelerator.prepare(net_, sgd_, DataLoader(Numbers{}, {.batch_size = 2}), schedule);
    accelerator.register_for_checkpointing(count);
  }
  EXPECT_EQ(sgd_.use_count(), 2);

  accelerator.free_memory();

  const CheckpointObjects objects = accelerator.checkpoint_objects();
  EXPECT_THAT(objects.models, IsEmpty());
  EXPECT_THAT(objects.optimizers, IsEmpty());
  EXPECT_THAT(objects.schedulers, IsEmpty());
  EXPECT_THAT(objects.loaders, IsEmpty());
  EXPECT_THAT(objects.custom, IsEmpty());
  EXPECT_EQ(sgd_.use_count(), 1) << "the Accelerator still holds the optimizer";
}

TEST_F(AcceleratorMembers, FreeMemoryLetsGoOfWhatItIsHanded) {
  Accelerator accelerator;
  at::Tensor tensor = at::ones({2});
  { auto optimizer = accelerator.prepare(sgd_); }
  accelerator.free_memory(sgd_, tensor);
  EXPECT_EQ(sgd_, nullptr);
  EXPECT_FALSE(tensor.defined());
}

TEST_F(AcceleratorMembers, PrepareHandsObjectsOfOtherKindsBackInTheirPlace) {
  Accelerator accelerator;
  std::string tokenizer = "bytes";
  auto [none, model, same, temporary, optimizer] =
      accelerator.prepare(nullptr, net_, tokenizer, std::vector<int>{1, 2}, sgd_);
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(&same, &tokenizer);
  EXPECT_THAT(temporary, ElementsAre(1, 2));
  EXPECT_EQ(model.unwrap().ptr(), net_.ptr());
  EXPECT_EQ(&accelerator.prepare(tokenizer), &tokenizer);
  EXPECT_EQ(accelerator.checkpoint_objects().models.size(), 1U);
}

TEST_F(AcceleratorMembers, ExtractModelFromParallelGivesWhatWasPrepared) {
  Accelerator accelerator;
  const auto model = accelerator.prepare(net_);
  EXPECT_EQ(extract_model_from_parallel(model).ptr(), net_.ptr());
  EXPECT_EQ(extract_model_from_parallel(net_).ptr(), net_.ptr());
}

// Rank 1 alone runs the model: with the exchange of gradients, or of buffers, it would wait for rank 0.
TEST(EvaluationMode, AModelThatIsPreparedForItWaitsForNobody) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    torch::nn::Linear net(2, 1);
    const at::Tensor own = net->weight.detach().clone();
    const auto model = accelerator.prepare_model(net, {.evaluation_mode = true});
    EXPECT_TRUE(at::equal(net->weight, own)) << "rank 0's values were sent";
    if (accelerator.process_index() == 1) {
      accelerator.backward(model(at::ones({1, 2})).sum());
      EXPECT_TRUE(at::equal(net->weight.grad(), at::ones({1, 2})));
    }
    accelerator.wait_for_everyone();
  });
}

TEST_F(AcceleratorMembers, AModelIsPreparedForTrainingOrForEvaluation) {
  Accelerator accelerator;
  const auto model = accelerator.prepare_model(net_, {.evaluation_mode = true});
  EXPECT_EQ(accelerator.prepare_model(net_, {.evaluation_mode = true}).unwrap().ptr(), net_.ptr());
  try {
    (void)accelerator.prepare(net_);
    FAIL() << "it was taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("with evaluation_mode is prepared for training"));
  }
}

TEST_F(AcceleratorMembers, ABackwardThatStepsTakesNeitherWeightNorGraph) {
  Accelerator accelerator;
  const auto refused = [&](const BackwardOptions& options) {
    try {
      accelerator.backward(net_(at::ones({1, 2})).sum(), options);
      return std::string("it was taken");
    } catch (const Error& error) {
      return error.message();
    }
  };
  EXPECT_THAT(refused({.weight = 1.0, .learning_rate = 0.1}), HasSubstr("a weight"));
  EXPECT_THAT(refused({.retain_graph = true, .learning_rate = 0.1}), HasSubstr("retain_graph"));
  EXPECT_THAT(refused({.create_graph = true, .learning_rate = 0.1}), HasSubstr("create_graph"));
}

// A teacher and a student, or a generator and its critic, each with optimizer, precision of the process and count of its own.
TEST(SeveralAccelerators, TrainDisjointModelsInOneProcess) {
  test::run_ranks(2, [] {
    Accelerator first;
    Accelerator second({.gradient_accumulation_steps = 1});
    torch::nn::Linear left(2, 1);
    torch::nn::Linear right(2, 1);
    torch::optim::SGD left_sgd(left->parameters(), torch::optim::SGDOptions(1.0));
    torch::optim::SGD right_sgd(right->parameters(), torch::optim::SGDOptions(1.0));
    auto [left_model, left_optimizer] = first.prepare(left, left_sgd);
    auto [right_model, right_optimizer] = second.prepare(right, right_sgd);
    const at::Tensor before = right->weight.detach().clone();
    const double rank = first.process_index();

    first.backward(left_model(at::full({1, 2}, rank)).sum());
    second.backward(right_model(at::full({1, 2}, 2 * rank)).sum());
    EXPECT_TRUE(at::equal(left->weight.grad(), at::full({1, 2}, 0.5)));
    EXPECT_TRUE(at::equal(right->weight.grad(), at::full({1, 2}, 1.0)));
    left_optimizer.step();
    EXPECT_TRUE(at::equal(right->weight, before));
    right_optimizer.step();
    EXPECT_TRUE(at::equal(right->weight, before - 1));
    EXPECT_EQ(first.checkpoint_objects().models.size(), 1U);
  });
}

TEST_F(AcceleratorMembers, FreeMemoryStartsTheCountOfAnAccumulationAnew) {
  Accelerator accelerator({.gradient_accumulation_steps = 2});
  auto model = accelerator.prepare(net_);
  { const auto first = accelerator.accumulate(model); }

  accelerator.clear();

  model = accelerator.prepare(net_);
  { const auto first = accelerator.accumulate(model); }
  EXPECT_FALSE(accelerator.sync_gradients());
  { const auto second = accelerator.accumulate(model); }
  EXPECT_TRUE(accelerator.sync_gradients());
}

TEST_F(AcceleratorMembers, ObjectsPreparedOneByOneWorkTogetherAsThosePreparedAtOnce) {
  Accelerator accelerator({.gradient_accumulation_steps = 2});
  auto schedule = std::make_shared<LambdaLR>(falling(*sgd_));

  auto model = accelerator.prepare_model(net_);
  const AcceleratedOptimizer optimizer = accelerator.prepare_optimizer(sgd_);
  const AcceleratedScheduler scheduler = accelerator.prepare_scheduler(schedule);

  EXPECT_EQ(accelerator.prepare_model(net_).runtime(), model.runtime());
  EXPECT_TRUE(accelerator.prepare_optimizer(sgd_) == optimizer);
  EXPECT_TRUE(accelerator.prepare_scheduler(schedule) == scheduler);
  std::vector<double> rates;
  for (int batch = 0; batch < 4; ++batch) {
    const auto scope = accelerator.accumulate(model);
    accelerator.backward(model(at::ones({1, 2})).sum());
    optimizer.step();
    scheduler.step();
    rates.push_back(scheduler.get_last_lr()[0]);
  }
  EXPECT_THAT(
      rates,
      ElementsAre(
          1.0, ::testing::DoubleEq(0.9), ::testing::DoubleEq(0.9), ::testing::DoubleEq(0.8)))
      << "the scheduler follows the optimizer that it was made for";
}

TEST_F(AcceleratorMembers, ASchedulerFollowsItsOptimizerThatALaterCallTakesOver) {
  Accelerator accelerator;
  torch::optim::SGD sgd(net_->parameters(), torch::optim::SGDOptions(1.0));
  LambdaLR schedule = falling(sgd);
  const AcceleratedScheduler scheduler = accelerator.prepare(schedule);
  const AcceleratedOptimizer optimizer = accelerator.prepare(std::move(sgd));

  optimizer.step();
  scheduler.step();

  EXPECT_DOUBLE_EQ(optimizer->param_groups()[0].options().get_lr(), 0.9);
}

TEST_F(AcceleratorMembers, ASchedulerThatWasPreparedFirstIsHeldBackByASkippedStep) {
  Accelerator accelerator({.mixed_precision = "fp16"});
  auto schedule = std::make_shared<LambdaLR>(falling(*sgd_));
  const AcceleratedScheduler scheduler = accelerator.prepare_scheduler(schedule);
  const AcceleratedOptimizer optimizer = accelerator.prepare_optimizer(sgd_);
  net_->weight.mutable_grad() = at::full({1, 2}, std::numeric_limits<float>::infinity());

  optimizer.step();
  scheduler.step();

  EXPECT_TRUE(optimizer.step_was_skipped());
  EXPECT_DOUBLE_EQ(scheduler.get_last_lr()[0], 1.0);
}

TEST_F(AcceleratorMembers, APreparedModelWithoutAModuleIsRefused) {
  Accelerator accelerator;
  const torch::nn::Linear nothing{nullptr};

  EXPECT_THROW(accelerator.prepare_model(nothing), Error);
  EXPECT_THROW(accelerator.prepare_optimizer(nullptr), Error);
}

// The gradient of the sum over [1, 1] is 1 in every weight, times the scale until it is divided again.
TEST_F(AcceleratorMembers, UnscaleGradientsDividesByTheScaleOnce) {
  Accelerator accelerator({.mixed_precision = "fp16", .grad_scaler = {.init_scale = 1024.0}});
  auto [model, optimizer] = accelerator.prepare(net_, sgd_);
  accelerator.backward(model(at::ones({1, 2})).sum());
  const at::Tensor scaled = net_->weight.grad().clone();

  accelerator.unscale_gradients(optimizer);
  accelerator.unscale_gradients();
  const double norm = accelerator.clip_grad_norm_(net_->parameters(), 100.0).item<double>();

  EXPECT_TRUE(scaled.equal(at::ones({1, 2}) * accelerator.scaler()->get_scale()));
  EXPECT_TRUE(net_->weight.grad().equal(at::ones({1, 2})));
  EXPECT_NEAR(norm, std::sqrt(3.0), 1e-6) << "two weights and a bias";
}

TEST_F(AcceleratorMembers, UnscaleGradientsLeavesUnscaledOnesAlone) {
  Accelerator accelerator;
  auto [model, optimizer] = accelerator.prepare(net_, sgd_);
  accelerator.backward(model(at::ones({1, 2})).sum());

  accelerator.unscale_gradients();

  EXPECT_TRUE(net_->weight.grad().equal(at::ones({1, 2})));
}

// Each rank on a node of its own.
const test::RankGroupOptions kTwoNodes = {
    .env = {{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}, {"GLOO_SOCKET_IFNAME", "lo"}}};

std::vector<std::string> calls_on(const Accelerator& accelerator) {
  std::vector<std::string> calls;
  const auto note = [&](const char* name) { return [&calls, name] { calls.emplace_back(name); }; };
  accelerator.on_main_process(note("main"));
  accelerator.on_local_main_process(note("local main"));
  accelerator.on_local_process(0, note("local 0"));
  accelerator.on_local_process(1, note("local 1"));
  return calls;
}

TEST(AcceleratorOnRanks, LocalCallsRunOnTheRankOfThisNode) {
  test::run_ranks(2, [] {
    const Accelerator accelerator;

    EXPECT_EQ(accelerator.local_process_index(), accelerator.process_index());
    if (accelerator.process_index() == 0) {
      EXPECT_THAT(calls_on(accelerator), ElementsAre("main", "local main", "local 0"));
    } else {
      EXPECT_THAT(calls_on(accelerator), ElementsAre("local 1"));
    }
  });
}

TEST(AcceleratorOnRanks, LocalCallsRunOnEachNode) {
  test::run_ranks(
      2,
      [] {
        const Accelerator accelerator;

        EXPECT_EQ(accelerator.local_process_index(), 0);
        if (accelerator.process_index() == 0) {
          EXPECT_THAT(calls_on(accelerator), ElementsAre("main", "local main", "local 0"));
        } else {
          EXPECT_THAT(calls_on(accelerator), ElementsAre("local main", "local 0"));
        }
      },
      kTwoNodes);
}

// The places in which the ranks come into the block.
std::int64_t place_behind_local_main(const Accelerator& accelerator) {
  const auto turn = accelerator.local_main_process_first();
  return PartialState::process_group()->store()->add("place", 1);
}

TEST(AcceleratorOnRanks, LocalMainProcessGoesFirst) {
  test::run_ranks(3, [] {
    const Accelerator accelerator;

    EXPECT_EQ(place_behind_local_main(accelerator) == 1, accelerator.is_local_main_process());
  });
}

TEST(AcceleratorOnRanks, LocalMainProcessesOfAllNodesGoAtOnce) {
  test::run_ranks(
      2,
      [] {
        const Accelerator accelerator;

        EXPECT_LE(place_behind_local_main(accelerator), 2);
        accelerator.wait_for_everyone();
      },
      kTwoNodes);
}

// Without a length, without a size of batches, and both.
struct Endless {
  [[nodiscard]] auto begin() const { return numbers->begin(); }
  [[nodiscard]] auto end() const { return numbers->end(); }
  std::shared_ptr<std::vector<std::int64_t>> numbers =
      std::make_shared<std::vector<std::int64_t>>(std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6});
};
struct UndeclaredBatches final : BatchSamplerBase {
  [[nodiscard]] BatchList begin_pass() override { return BatchList({{0, 1}, {2, 3}, {4, 5}}); }
  [[nodiscard]] std::int64_t size() const override { return 3; }
};

template <typename Loader>
std::vector<std::int64_t> gathered(Accelerator& accelerator,
                                   const Loader& loader,
                                   bool as_objects) {
  std::vector<std::int64_t> seen;
  for (const at::Tensor& batch : loader) {
    if (as_objects) {
      std::vector<std::int64_t> own;
      for (std::int64_t i = 0; i < batch.size(0); ++i)
        own.push_back(batch[i].template item<std::int64_t>());
      for (const std::int64_t number : accelerator.gather_for_metrics(own)) seen.push_back(number);
      continue;
    }
    const at::Tensor all = accelerator.gather_for_metrics(batch);
    for (std::int64_t i = 0; i < all.size(0); ++i) seen.push_back(all[i].item<std::int64_t>());
  }
  return seen;
}

TEST(AcceleratorOnRanks, MetricsSeeEverySampleOnceWhateverIsKnownOfTheLoader) {
  test::run_ranks(2, [] {
    for (const bool dispatch : {false, true}) {
      Accelerator accelerator({.dataloader_config = {.dispatch_batches = dispatch}});
      DataLoader endless(Endless{}, {.batch_size = 2});
      DataLoader undeclared(Numbers{6}, {.batch_sampler = std::make_shared<UndeclaredBatches>()});
      auto [first, second] = accelerator.prepare(endless, undeclared);
      for (const bool as_objects : {false, true}) {
        EXPECT_THAT(gathered(accelerator, first, as_objects), ElementsAre(0, 1, 2, 3, 4, 5, 6));
        EXPECT_THAT(gathered(accelerator, second, as_objects), ElementsAre(0, 1, 2, 3, 4, 5));
      }
    }
  });
}

TEST_F(AcceleratorMembers, TellsWhatItDoesWithLoaders) {
  const Accelerator accelerator({.dataloader_config = {.split_batches = true,
                                                       .dispatch_batches = false,
                                                       .even_batches = false,
                                                       .use_seedable_sampler = true,
                                                       .non_blocking = true,
                                                       .use_stateful_dataloader = true}});

  EXPECT_TRUE(accelerator.split_batches());
  EXPECT_EQ(accelerator.dispatch_batches(), false);
  EXPECT_FALSE(accelerator.even_batches());
  EXPECT_TRUE(accelerator.use_seedable_sampler());
  EXPECT_TRUE(accelerator.non_blocking());
  EXPECT_TRUE(accelerator.use_stateful_dataloader());
}

TEST_F(AcceleratorMembers, PlacesEachObjectAsItIsTold) {
  Accelerator accelerator;
  auto [near, far] = accelerator.prepare({.device_placement = {{true, false}}},
                                         DataLoader(Numbers{}, {.batch_size = 2}),
                                         DataLoader(Numbers{}, {.batch_size = 2}));
  EXPECT_EQ(near->plan().device, at::Device(at::kCPU));
  EXPECT_EQ(far->plan().device, std::nullopt);
  EXPECT_EQ(accelerator
                .prepare_data_loader(DataLoader(Numbers{}, {.batch_size = 2}),
                                     {.device_placement = false})
                ->plan()
                .device,
            std::nullopt);

  // One object is no tuple, and what is no list leaves the Accelerator's default.
  const auto alone =
      accelerator.prepare(PrepareOptions{}, DataLoader(Numbers{}, {.batch_size = 2}));
  EXPECT_EQ(alone->plan().device, at::Device(at::kCPU));
}

TEST_F(AcceleratorMembers, LeavesAllWhereItIsWithoutDevicePlacement) {
  Accelerator accelerator({.device_placement = false});
  const auto loader = accelerator.prepare(DataLoader(Numbers{}, {.batch_size = 2}));
  EXPECT_EQ(loader->plan().device, std::nullopt);
}

TEST_F(AcceleratorMembers, AListOfPlacementsHasOneForEachObject) {
  Accelerator accelerator;
  for (const std::vector<bool>& list : {std::vector<bool>{}, {true}, {true, true, true}}) {
    const Error error = test::error_of(
        [&] { (void)accelerator.prepare(PrepareOptions{.device_placement = list}, net_, sgd_); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr("should be a list with 2 elements"));
    EXPECT_THAT(error.message(), HasSubstr("has " + std::to_string(list.size())));
  }
  EXPECT_THAT(accelerator.checkpoint_objects().models, IsEmpty()) << "something was prepared";
}

TEST(AcceleratorOnRanks, DeepSpeedTakesNoListOfPlacements) {
  test::run_ranks(2, [] {
    Accelerator accelerator({.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 2}});
    torch::nn::Linear net(2, 1);
    const Error error = test::error_of(
        [&] { (void)accelerator.prepare(PrepareOptions{.device_placement = {{true}}}, net); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr("DeepSpeed places"));
  });
}

TEST_F(AcceleratorMembers, WithoutAConfigurationNoAxisHasARank) {
  const Accelerator accelerator;
  EXPECT_EQ(accelerator.parallelism_config(), std::nullopt);
  EXPECT_EQ(accelerator.torch_device_mesh(), std::nullopt);
  EXPECT_FALSE(accelerator.is_fsdp2());
  EXPECT_TRUE(accelerator.should_save_model());
  EXPECT_EQ(accelerator.fp8_backend(), FP8BackendType::kNo);
  const Error error = test::error_of([&] { (void)accelerator.data_parallel_rank(); });
  EXPECT_EQ(error.code(), ErrorCode::kNotInitialized);
  EXPECT_EQ(error.message(), "Data parallelism is not configured. Set `parallelism_config` first.");
}

TEST_F(AcceleratorMembers, SkipsTheFirstBatches) {
  Accelerator accelerator;
  DataLoader numbers(Numbers{4}, {.batch_size = 1});
  const auto loader = accelerator.prepare(numbers);

  int count = 0;
  for (const at::Tensor& batch : accelerator.skip_first_batches(loader, 3)) {
    EXPECT_EQ(batch.item<std::int64_t>(), 3);
    ++count;
  }
  EXPECT_EQ(count, 1);
  EXPECT_THROW((void)accelerator.skip_first_batches(loader, -1), Error);
}

}  // namespace
}  // namespace accel::accelerator_members_test
