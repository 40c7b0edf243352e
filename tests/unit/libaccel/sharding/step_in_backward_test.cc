// step_in_backward: the bits of a run whose optimizer steps behind the backward, whatever happens between the two.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/checkpoint.h>
#include <accel/error.h>
#include <accel/optim.h>

#include "tests/support/error_of.h"
#include "tests/support/offloaded_training.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::step_in_backward_test {
namespace {

namespace fs = std::filesystem;
using test::OffloadedTraining;
using test::zero_options;
using ::testing::HasSubstr;

// Parameters of several parts of 16 MiB of state, and of less than one.
constexpr test::OffloadedModel kModel{.width = 1600, .depth = 1};

// What happens to a training between backward and step, by the number of the step.
using Between = std::function<void(OffloadedTraining& training, int step)>;
using Change = std::function<void(AcceleratorOptions& options)>;

void expect_steps(const OffloadedTraining& training, std::int64_t kept, std::int64_t undone) {
  const BackwardSteps steps = training.optimizer->backward_steps();
  EXPECT_EQ(steps.kept, kept);
  EXPECT_EQ(steps.undone, undone);
}

class StepInBackward : public ::testing::TestWithParam<int> {
 protected:
  // Five batches in memory and on disk, on one and on two ranks. The first step finds no states on the disk, and is not counted.
  void expect_same(std::int64_t kept,
                   std::int64_t undone,
                   const Between& between = {},
                   const Change& change = {}) {
    for (const int num_ranks : {1, 2}) {
      test::run_ranks(num_ranks, [&] {
        AcceleratorOptions options = zero_options(GetParam(), std::nullopt);
        if (change) change(options);
        OffloadedTraining memory(options, kModel);
        train(memory, between);
        expect_steps(memory, 0, 0);

        options = zero_options(GetParam(), scratch_.path());
        options.deepspeed_plugin->step_in_backward = true;
        if (change) change(options);
        OffloadedTraining disk(options, kModel);
        train(disk, between);
        test::expect_same_tensors(disk.outcome(), memory.outcome());
        expect_steps(disk, kept, undone);
        disk.accelerator.wait_for_everyone();
      });
    }
  }

  static void train(OffloadedTraining& training, const Between& between) {
    int step = 0;
    training.train(5, [&] {
      if (between) between(training, step);
      ++step;
    });
  }

  const test::ScratchFolder scratch_;
};

TEST_P(StepInBackward, IsKeptWhereNothingChangesGradients) {
  expect_same(4, 0);
}

TEST_P(StepInBackward, IsKeptWhereANormIsBelowThatToClipTo) {
  expect_same(4, 0, [](OffloadedTraining& training, int) {
    training.accelerator.clip_grad_norm_(training.net->parameters(), 1e6);
  });
}

TEST_P(StepInBackward, IsUndoneWhereGradientsAreClipped) {
  expect_same(2, 2, [](OffloadedTraining& training, int step) {
    training.accelerator.clip_grad_norm_(training.net->parameters(), step % 2 == 0 ? 1e6 : 1e-6);
  });
}

TEST_P(StepInBackward, IsUndoneWhereTheStepClips) {
  expect_same(0, 4, {}, [](AcceleratorOptions& options) {
    options.deepspeed_plugin->gradient_clipping = 1e-6;
  });
}

TEST_P(StepInBackward, IsKeptWhereALargeNormIsTheLimitOfTheStep) {
  expect_same(4, 0, {}, [](AcceleratorOptions& options) {
    options.deepspeed_plugin->gradient_clipping = 1e6;
  });
}

TEST_P(StepInBackward, IsUndoneWhereTheRateChangesBeforeTheStep) {
  expect_same(3, 1, [](OffloadedTraining& training, int step) {
    if (step != 2) return;
    for (auto& group : training.optimizer->optimizer().param_groups()) group.options().set_lr(0.5);
  });
}

TEST_P(StepInBackward, WaitsForTheLastBatchOfAnAccumulation) {
  // Steps after batches 2 and 4.
  expect_same(
      1, 0, {}, [](AcceleratorOptions& options) { options.gradient_accumulation_steps = 2; });
}

TEST_P(StepInBackward, IsUndoneByOverflowsOfHalfPrecision) {
  const auto scaled = [](double growth) {
    return [growth](AcceleratorOptions& options) {
      options.mixed_precision = PrecisionType::kFp16;
      options.grad_scaler = GradScalerKwargs{.init_scale = 8.0,
                                             .growth_factor = growth,
                                             .backoff_factor = 1.0 / growth,
                                             .growth_interval = 1};
    };
  };
  expect_same(4, 0, {}, scaled(1.5));
  // Every other scale is too large.
  expect_same(2, 2, {}, scaled(0x1p40));
}

TEST_P(StepInBackward, IsUndoneByALoadBeforeTheStep) {
  expect_same(3, 1, [this](OffloadedTraining& training, int step) {
    const fs::path state = scratch_.path() / "state";
    if (step == 2) training.accelerator.save_state(state);
    if (step == 3) training.accelerator.load_state(state);
    if (step == 3) training.accelerator.wait_for_everyone();
  });
}

INSTANTIATE_TEST_SUITE_P(Stages, StepInBackward, ::testing::Values(2, 3));

TEST(StepInBackwardErrors, NameWhatIsMissing) {
  const test::ScratchFolder scratch;
  AcceleratorOptions options = zero_options(2, std::nullopt);
  options.deepspeed_plugin->step_in_backward = true;
  const Error error = test::error_of([&] { const OffloadedTraining training(options); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.remedy(), HasSubstr("offload_optimizer_nvme_path"));
}

TEST(StepInBackwardErrors, RefuseRanksThatHaveAllGradients) {
  const test::ScratchFolder scratch;
  test::run_ranks(2, [&] {
    for (const int stage : {0, 1}) {
      AcceleratorOptions options = zero_options(stage, scratch.path());
      options.deepspeed_plugin->step_in_backward = true;
      const Error error = test::error_of([&] { const OffloadedTraining training(options); });
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_THAT(error.message(), HasSubstr("each rank has all gradients"));
    }
  });
}

}  // namespace
}  // namespace accel::step_in_backward_test
