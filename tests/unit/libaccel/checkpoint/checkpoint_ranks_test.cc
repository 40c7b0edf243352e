// Checkpoints of two processes over Gloo.

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/checkpoint.h>
#include <accel/error.h>
#include <accel/state.h>

#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"
#include "tests/unit/libaccel/checkpoint/training_run.h"

namespace accel::checkpoint_ranks_test {
namespace {

namespace fs = std::filesystem;
using test::TrainingRun;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CheckpointOfTwoRanks : public ::testing::Test {
 protected:
  test::ScratchFolder scratch_;  // the same for all ranks
  fs::path folder_ = scratch_.path() / "checkpoints";
};

TEST_F(CheckpointOfTwoRanks, GivesEachRankItsOwnRandomStateBack) {
  test::run_ranks(2, [this] {
    const PartialState state;
    const auto rank = static_cast<std::uint64_t>(state.process_index());
    CheckpointSeries series({.folder = folder_});
    TrainingRun run(1);
    test::Randomness own(10 + rank);
    CheckpointObjects objects = run.objects();
    objects.random = &own;
    series.save(objects, 4);
    const at::Tensor expected = own.draw({3});

    test::Randomness other(90 + rank);
    objects.random = &other;
    const LoadReport report = CheckpointSeries({.folder = folder_}).load_newest(objects);

    EXPECT_EQ(report.checkpoint.world_size, 2);
    EXPECT_TRUE(other.draw({3}).equal(expected));
  });
  // Only the parent gets here; the folder is its own.
  TrainingRun alone(2);
  const LoadReport report = load_checkpoint(folder_ / "checkpoint_0", alone.objects());
  EXPECT_EQ(report.checkpoint.step, 4);
}

TEST_F(CheckpointOfTwoRanks, LoadedByThreeTellsTheThirdThatItHasNoRandomState) {
  if (test::rank_of_this_process() < 0) {
    TrainingRun run(1);
    CheckpointSeries({.folder = folder_}).save(run.objects(), 1);
  }
  test::run_ranks(2, [this] {
    const PartialState state;
    TrainingRun run(1);
    const LoadReport report = CheckpointSeries({.folder = folder_}).load_newest(run.objects());
    if (state.process_index() == 0) {
      EXPECT_TRUE(report.notices.empty());
    } else {
      EXPECT_THAT(report.notices,
                  ElementsAre(HasSubstr("no random state for rank 1: it was saved by 1 ranks")));
    }
  });
}

TEST_F(CheckpointOfTwoRanks, DamagedFileOfOneRankMakesAllFallBackToTheSameCheckpoint) {
  test::run_ranks(2, [this] {
    const PartialState state;
    CheckpointSeries series({.folder = folder_});
    TrainingRun run(1);
    series.save(run.objects(), 1);
    series.save(run.objects(), 2);
    if (state.is_main_process()) {
      // Same size, other bytes: only rank 1 reads this file.
      const fs::path victim = folder_ / "checkpoint_1" / "random_states_1.safetensors";
      std::fstream file(victim, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(1000);
      const char changed = static_cast<char>(file.get() ^ 1);
      file.seekp(1000);
      file.put(changed);
    }
    state.wait_for_everyone();

    const LoadReport report = CheckpointSeries({.folder = folder_}).load_newest(run.objects());

    EXPECT_EQ(report.checkpoint.step, 1);
    EXPECT_THAT(report.notices, ElementsAre(HasSubstr("random_states_1.safetensors is damaged")));
  });
}

}  // namespace
}  // namespace accel::checkpoint_ranks_test
