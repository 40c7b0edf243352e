// Making room: when the ranks of a job end, and what an Accelerator needs for it. With a real launcher:
// tests/integration/preemption.

#include "libaccel/api/accelerator/preemption.h"

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/operations.h>
#include <accel/state.h>

#include "libaccel/engine/process/process_group.h"
#include "tests/support/error_of.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::preemption_test {
namespace {

using ::testing::HasSubstr;

// The boundary at which this rank ends, when it is asked before boundary `asked_at`.
std::optional<int> end_of_rank(int asked_at) {
  detail::Preemption preemption(PartialState::process_group());
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

// Ranks of one node: the one that is late holds nobody up.
TEST(Preemption, ARankOfANodeReachesBoundariesThatAnotherHasNotReached) {
  test::run_ranks(2, [] {
    const PartialState state;
    detail::Preemption preemption(PartialState::process_group());
    const auto reach_five = [&](bool is_asked) {
      for (int boundary = 0; boundary < 5; ++boundary) EXPECT_FALSE(preemption.is_due(is_asked));
    };
    if (state.process_index() == 0) reach_five(false);
    state.wait_for_everyone();
    if (state.process_index() == 1) reach_five(true);
    state.wait_for_everyone();

    EXPECT_TRUE(preemption.is_due(false)) << "the boundary after the newest";
  });
}

// Without a collective between boundaries ranks are as far apart as the machine lets them be.
TEST(Preemption, RanksThatAreApartEndAtOneBoundary) {
  test::run_ranks(3, [] {
    const PartialState state;
    detail::Preemption preemption(PartialState::process_group());
    std::int64_t boundary = 0;
    const bool is_asked = state.process_index() == 1;
    while (!preemption.is_due(is_asked && boundary >= 1'000)) ++boundary;

    const at::Tensor ends = gather(at::full({1}, boundary, at::kLong));
    EXPECT_TRUE(ends.eq(boundary).all().item<bool>()) << ends;
  });
}

// Of an Accelerator that is gone the word is still there.
TEST(Preemption, TheNextAcceleratorOfAProcessCountsOn) {
  test::run_ranks(2, [] {
    const PartialState state;
    {
      detail::Preemption first(PartialState::process_group());
      for (int boundary = 0; boundary < 7; ++boundary) EXPECT_FALSE(first.is_due(false));
    }
    state.wait_for_everyone();
    detail::Preemption second(PartialState::process_group());
    EXPECT_FALSE(second.is_due(true));
    state.wait_for_everyone();
    EXPECT_TRUE(second.is_due(false));
  });
}

// Gloo has no memory to agree through.
TEST(Preemption, RanksWithoutSharedMemoryEndAtTheBoundaryAfterTheFirstThatWasAsked) {
  test::run_ranks(2, [] {
    const PartialState state({.init_process_group = {.backend = "gloo"}});
    EXPECT_EQ(PartialState::process_group()->stop_word(), nullptr);
    EXPECT_EQ(end_of_rank(state.process_index() == 1 ? 3 : 100), 4);
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
    return test::error_of([&] { const Accelerator accelerator(options); });
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
