// Making room: when the ranks of a job end, and what an Accelerator needs for it. With a real launcher:
// tests/integration/preemption.

#include "libaccel/prepare/preemption.h"

#include <optional>
#include <vector>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/operations.h>
#include <accel/state.h>

#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::preemption_test {
namespace {

using ::testing::HasSubstr;

// The boundary at which this rank ends, when it is asked before boundary `asked_at`.
std::optional<int> end_of_rank(int asked_at) {
  detail::Preemption preemption(current_process_group());
  for (int boundary = 0; boundary < 8; ++boundary) {
    if (preemption.is_due(boundary >= asked_at)) return boundary;
    // As the gradients of the next step.
    (void)reduce(at::ones({3}), Reduction::kSum);
  }
  return std::nullopt;
}

TEST(Preemption, AllRanksEndAtTheBoundaryAfterTheFirstThatWasAsked) {
  test::run_ranks(3, [] {
    const PartialState state;
    const int asked_at[] = {5, 3, 100};

    EXPECT_EQ(end_of_rank(asked_at[state.process_index()]), 4);
  });
}

TEST(Preemption, NobodyEndsUnlessAsked) {
  test::run_ranks(2, [] {
    const PartialState state;

    EXPECT_EQ(end_of_rank(100), std::nullopt);
    state.wait_for_everyone();
  });
}

TEST(Preemption, AProcessAloneEndsWhereItIsAsked) {
  detail::Preemption preemption(nullptr);

  EXPECT_FALSE(preemption.is_due(false));
  EXPECT_TRUE(preemption.is_due(true));
}

class PreemptionOptions : public ::testing::Test {
 protected:
  void TearDown() override { PartialState::reset(); }

  static Error error_of(const AcceleratorOptions& options) {
    try {
      const Accelerator accelerator(options);
    } catch (const Error& error) {
      return error;
    }
    ADD_FAILURE() << "the options were accepted";
    return {ErrorCode::kCount_, ""};
  }
};

TEST_F(PreemptionOptions, SavingWantsAProjectThatNamesItsCheckpoints) {
  const Error error = error_of({.project_dir = "run", .on_preemption = OnPreemption::kSaveAndExit});

  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.remedy(), HasSubstr("automatic_checkpoint_naming"));
}

TEST_F(PreemptionOptions, AnExitCodeThatSaysSuccessIsRefused) {
  EXPECT_THAT(error_of({.preemption_exit_code = 0}).message(), HasSubstr("expected 1 to 255"));
}

TEST_F(PreemptionOptions, WithoutALauncherNobodyAsks) {
  Accelerator accelerator({.on_preemption = OnPreemption::kNotify});

  EXPECT_FALSE(accelerator.preemption_requested());
}

}  // namespace
}  // namespace accel::preemption_test
