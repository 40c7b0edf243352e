// Checkpoints of two processes over Gloo.

#include <cstdlib>
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

namespace accel {
namespace {

namespace fs = std::filesystem;
using test::TrainingRun;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What test.path() is for the parent is not what it is for a rank: ranks get it by the environment.
struct SharedFolder {
  test::ScratchFolder scratch;
  test::RankGroupOptions options() const {
    return {.env = {{"ACCEL_TEST_FOLDER", scratch.path()}}};
  }
  static fs::path here() { return fs::path(std::getenv("ACCEL_TEST_FOLDER")) / "checkpoints"; }
};

TEST(CheckpointOfTwoRanks, GivesEachRankItsOwnRandomStateBack) {
  const SharedFolder shared;
  test::run_ranks(
      2,
      [] {
        const PartialState state;
        const auto rank = static_cast<std::uint64_t>(state.process_index());
        CheckpointSeries series({.folder = SharedFolder::here()});
        TrainingRun run(1);
        test::Randomness own(10 + rank);
        CheckpointObjects objects = run.objects();
        objects.random = &own;
        series.save(objects, 4);
        const at::Tensor expected = own.draw({3});

        test::Randomness other(90 + rank);
        objects.random = &other;
        const LoadReport report =
            CheckpointSeries({.folder = SharedFolder::here()}).load_newest(objects);

        EXPECT_EQ(report.checkpoint.world_size, 2);
        EXPECT_TRUE(other.draw({3}).equal(expected));
      },
      shared.options());
  // Only the parent gets here; the folder is its own.
  TrainingRun alone(2);
  const LoadReport report =
      load_checkpoint(shared.scratch.path() / "checkpoints" / "checkpoint_0", alone.objects());
  EXPECT_EQ(report.checkpoint.step, 4);
}

TEST(CheckpointOfTwoRanks, LoadedByThreeTellsTheThirdThatItHasNoRandomState) {
  const SharedFolder shared;
  {
    TrainingRun run(1);
    CheckpointSeries({.folder = shared.scratch.path() / "checkpoints"}).save(run.objects(), 1);
  }
  test::run_ranks(
      2,
      [] {
        const PartialState state;
        TrainingRun run(1);
        const LoadReport report =
            CheckpointSeries({.folder = SharedFolder::here()}).load_newest(run.objects());
        if (state.process_index() == 0) {
          EXPECT_TRUE(report.notices.empty());
        } else {
          EXPECT_THAT(
              report.notices,
              ElementsAre(HasSubstr("no random state for rank 1: it was saved by 1 ranks")));
        }
      },
      shared.options());
}

TEST(CheckpointOfTwoRanks, DamagedFileOfOneRankMakesAllFallBackToTheSameCheckpoint) {
  const SharedFolder shared;
  test::run_ranks(
      2,
      [] {
        const PartialState state;
        CheckpointSeries series({.folder = SharedFolder::here()});
        TrainingRun run(1);
        series.save(run.objects(), 1);
        series.save(run.objects(), 2);
        if (state.is_main_process()) {
          // Same size, other bytes: only rank 1 reads this file.
          const fs::path victim =
              SharedFolder::here() / "checkpoint_1" / "random_states_1.safetensors";
          std::fstream file(victim, std::ios::in | std::ios::out | std::ios::binary);
          file.seekg(1000);
          const char changed = static_cast<char>(file.get() ^ 1);
          file.seekp(1000);
          file.put(changed);
        }
        state.wait_for_everyone();

        const LoadReport report =
            CheckpointSeries({.folder = SharedFolder::here()}).load_newest(run.objects());

        EXPECT_EQ(report.checkpoint.step, 1);
        EXPECT_THAT(report.notices,
                    ElementsAre(HasSubstr("random_states_1.safetensors is damaged")));
      },
      shared.options());
}

}  // namespace
}  // namespace accel
