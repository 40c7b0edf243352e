// What is left of a save that was stopped, that failed on one rank, or that filled the disk.

#include <filesystem>
#include <fstream>
#include <map>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>

#include <accel/checkpoint.h>
#include <accel/error.h>

#include "libaccel/engine/checkpoint/series/checkpoint_writer.h"
#include "runtime/checkpoint/hashed_file.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/names_in.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/tensor_matchers.h"
#include "tests/support/thread_ranks.h"
#include "tests/unit/libaccel/checkpoint/training_run.h"

namespace accel::checkpoint_fault_test {
namespace {

namespace fs = std::filesystem;
using test::FaultyDisk;
using test::names_in;
using test::ThreadRanks;
using test::TrainingRun;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

bool is_same(const TrainingRun& a, const TrainingRun& b) {
  const auto left = a.tensors();
  const auto right = b.tensors();
  for (size_t i = 0; i < left.size(); ++i) {
    if (!test::same_tensor(left[i].second, right[i].second)) return false;
  }
  return true;
}

// A run with checkpoint_0 on disk and one more step in memory.
struct Scene {
  explicit Scene(const fs::path& root, std::optional<int> total_limit = 1)
      : folder(root / "checkpoints"), limit(total_limit) {
    before.train(1);
    after.train(1);
    on_good_disk({.folder = folder},
                 [&](CheckpointSeries& series) { series.save(before.objects(), 1); });
    after.train(1);
  }

  static void on_good_disk(const CheckpointSeriesOptions& options,
                           const std::function<void(CheckpointSeries&)>& use) {
    ThreadRanks(1).run([&](checkpoint::RankExchange& ranks) {
      FaultyDisk disk;
      CheckpointSeries series(options, disk, ranks);
      use(series);
    });
  }

  void save_next(FaultyDisk& disk) {
    ThreadRanks(1).run([&](checkpoint::RankExchange& ranks) {
      CheckpointSeries series(
          {.folder = folder, .total_limit = limit, .iteration = 1}, disk, ranks);
      try {
        series.save(after.objects(), 2);
      } catch (const Error& caught) {
        error = caught;
      }
    });
  }

  fs::path folder;
  std::optional<int> limit;
  TrainingRun before{1};
  TrainingRun after{1};
  std::optional<Error> error;
};

enum class Loss { kProcess, kPowerRenamesHappened, kPowerRenamesLost };

class StoppedSave : public ::testing::TestWithParam<Loss> {};

TEST_P(StoppedSave, LeavesACompleteCheckpointWhateverTheStep) {
  int steps = 0;
  {
    const test::ScratchFolder scratch;
    FaultyDisk disk;
    Scene(scratch.path()).save_next(disk);
    steps = disk.steps();
  }
  ASSERT_GT(steps, 30);

  int num_old = 0;
  int num_new = 0;
  for (int stop = 0; stop <= steps; ++stop) {
    const test::ScratchFolder scratch;
    Scene scene(scratch.path());
    FaultyDisk disk;
    disk.stop_after(stop);
    scene.save_next(disk);
    if (GetParam() == Loss::kPowerRenamesHappened)
      disk.lose_unsynced(FaultyDisk::Renames::kHappened);
    if (GetParam() == Loss::kPowerRenamesLost) disk.lose_unsynced(FaultyDisk::Renames::kLost);

    Scene::on_good_disk({.folder = scene.folder}, [&](CheckpointSeries& series) {
      TrainingRun loaded(7);
      const LoadReport report = series.load_newest(loaded.objects());
      const bool is_new = report.checkpoint.step == 2;
      EXPECT_TRUE(is_same(loaded, is_new ? scene.after : scene.before))
          << "stopped after step " << stop;
      (is_new ? num_new : num_old) += 1;
      // And the run goes on: the next save succeeds and removes what was left behind.
      series.save(loaded.objects(), 3);
    });
    EXPECT_THAT(names_in(scene.folder), Each(StartsWith("checkpoint_")));
  }
  EXPECT_GT(num_old, 20);
  EXPECT_GT(num_new, 0);
}

INSTANTIATE_TEST_SUITE_P(EveryLoss,
                         StoppedSave,
                         ::testing::Values(Loss::kProcess,
                                           Loss::kPowerRenamesHappened,
                                           Loss::kPowerRenamesLost));

TEST(FullDisk, FailsTheSaveAndKeepsTheOldCheckpoint) {
  // From a disk that is full at once to one where only the manifest does not fit.
  for (const std::size_t free_bytes : {0u, 100u, 2000u, 6000u}) {
    const test::ScratchFolder scratch;
    Scene scene(scratch.path());
    FaultyDisk disk;
    disk.set_free_bytes(free_bytes);

    scene.save_next(disk);

    ASSERT_TRUE(scene.error.has_value()) << free_bytes;
    EXPECT_EQ(scene.error->code(), ErrorCode::kDiskFull);
    EXPECT_THAT(scene.error->what(), HasSubstr("saving the checkpoint"));
    EXPECT_THAT(names_in(scene.folder), ElementsAre("checkpoint_0"));
    TrainingRun loaded(7);
    CheckpointSeries({.folder = scene.folder}).load_newest(loaded.objects());
    EXPECT_TRUE(is_same(loaded, scene.before));
  }
}

TEST(FullDisk, ErrorOfTheKernelNamesDeviceAndBytes) {
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(full);
  const std::vector<std::byte> bytes(4096);

  try {
    checkpoint::real_file_system().write(full.get(), bytes, "/dev/full");
    FAIL() << "/dev/full took bytes";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDiskFull);
    EXPECT_THAT(error.message(),
                AllOf(HasSubstr("cannot write 4096 bytes to /dev/full on "),
                      HasSubstr(" at /dev"),
                      HasSubstr("bytes free")));
  }
}

TEST(FullDisk, RealFileSystemOfTwoHundredKilobytes) {
  const auto exits = test::run_ranks(1, [] {
    const test::ScratchFolder scratch;
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("", "/", "", MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", scratch.path().c_str(), "tmpfs", 0, "size=200k") != 0) {
      std::puts("skipped: mounting needs root");
      return;
    }
    Scene scene(scratch.path());
    std::ofstream(scratch.path() / "ballast") << std::string(std::size_t{1} << 18, 'x');
    TrainingRun wide(1, 2000);
    std::optional<Error> error;
    try {
      CheckpointSeries({.folder = scene.folder, .iteration = 1}).save(wide.objects(), 2);
    } catch (const Error& caught) {
      error = caught;
    }
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->code(), ErrorCode::kDiskFull);
    EXPECT_THAT(error->message(), HasSubstr("on tmpfs at " + scratch.path().string()));
    EXPECT_THAT(names_in(scene.folder), ElementsAre("checkpoint_0"));
    TrainingRun loaded(7);
    CheckpointSeries({.folder = scene.folder}).load_newest(loaded.objects());
    EXPECT_TRUE(is_same(loaded, scene.before));
    ::umount2(scratch.path().c_str(), MNT_DETACH);
  });
  if (exits[0].output.find("skipped: ") != std::string::npos) GTEST_SKIP() << "mounting needs root";
}

TEST(FailureOnOneRank, FailsTheSaveOnAllAndNamesTheRank) {
  const test::ScratchFolder scratch;
  const fs::path folder = scratch.path() / "saved";
  std::vector<std::string> messages(3);

  ThreadRanks(3).run([&](checkpoint::RankExchange& ranks) {
    TrainingRun run(1);
    FaultyDisk disk;
    if (ranks.rank() == 2) disk.set_free_bytes(10);
    try {
      checkpoint::write_checkpoint(
          disk, ranks, folder, run.objects(), {}, checkpoint::Existing::kReplace);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDiskFull);
      messages[static_cast<size_t>(ranks.rank())] = error.what();
    }
  });

  for (const std::string& message : messages) {
    EXPECT_THAT(message, AllOf(HasSubstr("random_states_2"), HasSubstr("rank 2")));
  }
  EXPECT_TRUE(fs::is_empty(scratch.path()));
}

// ---- checkpoints that are replaced

class ReplacedCheckpoint : public ::testing::Test {
 protected:
  ReplacedCheckpoint() {
    new_.train(1);
    FaultyDisk disk;
    save(disk, old_, 1);
  }

  std::optional<Error> save(FaultyDisk& disk, TrainingRun& run, std::int64_t step) {
    std::optional<Error> error;
    ThreadRanks(1).run([&](checkpoint::RankExchange& ranks) {
      try {
        checkpoint::write_checkpoint(
            disk, ranks, folder_, run.objects(), {.step = step}, checkpoint::Existing::kReplace);
      } catch (const Error& caught) {
        error = caught;
      }
    });
    return error;
  }

  test::ScratchFolder scratch_;
  fs::path folder_ = scratch_.path() / "last";
  TrainingRun old_{1};
  TrainingRun new_{1};
};

TEST_F(ReplacedCheckpoint, IsCompleteWithOrWithoutItsNameWhateverTheStep) {
  FaultyDisk disk;
  disk.exchange_in_steps();
  ASSERT_FALSE(save(disk, new_, 2));
  const int steps = disk.steps();
  int num_old = 0;
  int num_new = 0;
  int num_nameless = 0;
  // Stopped after each step, then found by a load, or by a save that fails at once.
  for (int stop = 0; stop <= steps; ++stop) {
    for (const bool is_save_next : {false, true}) {
      for (const auto& entry : fs::directory_iterator(scratch_.path())) fs::remove_all(entry);
      FaultyDisk good;
      ASSERT_FALSE(save(good, old_, 1));
      FaultyDisk stopping;
      stopping.exchange_in_steps();
      stopping.stop_after(stop);
      save(stopping, new_, 2);
      num_nameless += fs::exists(folder_) ? 0 : 1;

      if (is_save_next) {
        FaultyDisk full;
        full.set_free_bytes(0);
        EXPECT_EQ(save(full, old_, 3)->code(), ErrorCode::kDiskFull);
        EXPECT_THAT(names_in(scratch_.path()), ElementsAre("last"));
      }
      TrainingRun loaded(7);
      const bool is_new = load_checkpoint(folder_, loaded.objects()).checkpoint.step == 2;
      EXPECT_TRUE(is_same(loaded, is_new ? new_ : old_)) << "stopped after step " << stop;
      (is_new ? num_new : num_old) += 1;

      FaultyDisk next;
      next.exchange_in_steps();
      EXPECT_FALSE(save(next, loaded, 4)) << "stopped after step " << stop;
      EXPECT_THAT(names_in(scratch_.path()), ElementsAre("last"));
    }
  }
  EXPECT_GT(num_old, 20);
  EXPECT_GT(num_new, 0);
  EXPECT_EQ(num_nameless, 2);
}

TEST_F(ReplacedCheckpoint, ThatCannotBeRemovedIsNoFailureOfTheNewOne) {
  FaultyDisk disk;
  disk.fail_removal_of(scratch_.path() / ".tmp-last");

  EXPECT_FALSE(save(disk, new_, 2));

  EXPECT_EQ(read_checkpoint_info(folder_).step, 2);
  EXPECT_EQ(read_checkpoint_info(scratch_.path() / ".tmp-last").step, 1);
}

TEST_F(ReplacedCheckpoint, IsNotTheOneWhoseFolderAnotherSaveTookBeforeItWasLocked) {
  FaultyDisk first;
  FaultyDisk second;
  first.after_make_folder([&] { EXPECT_FALSE(save(second, new_, 4)); });

  const std::optional<Error> error = save(first, old_, 3);

  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::kCheckpointExists);
  EXPECT_THAT(error->message(), HasSubstr("another process is saving"));
  EXPECT_EQ(read_checkpoint_info(folder_).step, 4);
  EXPECT_THAT(names_in(scratch_.path()), ElementsAre("last"));
}

TEST_F(ReplacedCheckpoint, IsNotReplacedByTwoAtOnce) {
  FaultyDisk disk;
  std::optional<Error> of_other;
  CheckpointObjects objects = old_.objects();
  objects.before_save.push_back(
      [&](const fs::path&) { of_other = save(disk, new_, 4); });  // while this one is at work

  ThreadRanks(1).run([&](checkpoint::RankExchange& ranks) {
    checkpoint::write_checkpoint(
        disk, ranks, folder_, objects, {.step = 3}, checkpoint::Existing::kReplace);
  });

  ASSERT_TRUE(of_other.has_value());
  EXPECT_EQ(of_other->code(), ErrorCode::kCheckpointExists);
  EXPECT_THAT(of_other->message(), HasSubstr("another process is saving"));
  EXPECT_EQ(read_checkpoint_info(folder_).step, 3);
  EXPECT_THAT(names_in(scratch_.path()), ElementsAre("last"));
}

TEST_F(ReplacedCheckpoint, StaysUntilTheNewOneIsDurable) {
  FaultyDisk disk;
  disk.fail_sync_of(scratch_.path());

  const std::optional<Error> error = save(disk, new_, 2);

  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::kFileIo);
  EXPECT_EQ(read_checkpoint_info(folder_).step, 2);
  EXPECT_EQ(read_checkpoint_info(scratch_.path() / ".tmp-last").step, 1);
}

TEST(SaveOnEachNode, GivesEveryNodeACompleteFolder) {
  const test::ScratchFolder scratch;
  ThreadRanks ranks_of_two_nodes(4, 2);
  const auto folder_of = [&](const checkpoint::RankExchange& ranks) {
    return scratch.path() / ("node_" + std::to_string(ranks.rank() / 2)) / "saved";
  };

  ranks_of_two_nodes.run([&](checkpoint::RankExchange& ranks) {
    TrainingRun run(1);
    checkpoint::write_checkpoint(checkpoint::real_file_system(),
                                 ranks,
                                 folder_of(ranks),
                                 run.objects(),
                                 {.save_on_each_node = true},
                                 checkpoint::Existing::kReplace);
  });

  const auto second = names_in(scratch.path() / "node_1" / "saved");
  EXPECT_THAT(second,
              ::testing::IsSupersetOf({"accel_checkpoint.json",
                                       "model.safetensors",
                                       "random_states_2.json",
                                       "random_states_3.json"}));
  EXPECT_THAT(second, ::testing::Not(::testing::Contains("random_states_0.json")));
  EXPECT_EQ(read_checkpoint_info(scratch.path() / "node_1" / "saved").world_size, 4);
}

}  // namespace
}  // namespace accel::checkpoint_fault_test
