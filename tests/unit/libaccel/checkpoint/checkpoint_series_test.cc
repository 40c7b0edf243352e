// Numbered checkpoints: numbers, limits, and which one is newest.

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/checkpoint.h>
#include <accel/error.h>

#include "libaccel/engine/checkpoint/ranks/rank_exchange.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/thread_ranks.h"
#include "tests/unit/libaccel/checkpoint/training_run.h"

namespace accel::checkpoint_series_test {
namespace {

namespace fs = std::filesystem;
using test::TrainingRun;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CheckpointSeriesTest : public ::testing::Test {
 protected:
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder_))
      found.push_back(entry.path().filename());
    std::sort(found.begin(), found.end());
    return found;
  }

  test::ScratchFolder scratch_;
  fs::path folder_ = scratch_.path() / "project" / "checkpoints";
  TrainingRun run_{1};
};

TEST_F(CheckpointSeriesTest, KeepsTheNewestByNumberNotByName) {
  CheckpointSeries series({.folder = folder_, .total_limit = 2});
  for (int i = 0; i <= 10; ++i) series.save(run_.objects(), i);

  EXPECT_THAT(names(), ElementsAre("checkpoint_10", "checkpoint_9"));
  EXPECT_EQ(series.load_newest(run_.objects()).checkpoint.folder.filename(), "checkpoint_10");
}

TEST_F(CheckpointSeriesTest, NumberThatIsTakenIsAnErrorWithoutALoad) {
  CheckpointSeries({.folder = folder_}).save(run_.objects(), 0);

  CheckpointSeries again({.folder = folder_});
  try {
    again.save(run_.objects(), 1);
    FAIL() << "checkpoint_0 was written twice";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCheckpointExists);
    EXPECT_THAT(error.message(), HasSubstr("checkpoint_0 exists"));
  }
}

TEST_F(CheckpointSeriesTest, NumbersGoOnAfterALoadAndAfterARestart) {
  CheckpointSeries first({.folder = folder_});
  first.save(run_.objects(), 1);
  first.save(run_.objects(), 2);

  CheckpointSeries resumed({.folder = folder_});
  resumed.load_newest(run_.objects());
  EXPECT_EQ(resumed.iteration(), 2);
  resumed.save(run_.objects(), 3);

  CheckpointSeries restarted({.folder = folder_, .restart_count = 1});
  restarted.save(run_.objects(), 1);
  EXPECT_THAT(names(), ElementsAre("checkpoint_0", "checkpoint_1", "checkpoint_2", "checkpoint_3"));
}

TEST_F(CheckpointSeriesTest, RunThatWentOnFromAnOlderCheckpointIsNewer) {
  CheckpointSeries first({.folder = folder_});
  first.save(run_.objects(), 10);
  first.save(run_.objects(), 20);

  CheckpointSeries branch({.folder = folder_});
  branch.load(folder_ / "checkpoint_0", run_.objects());
  branch.save(run_.objects(), 15);

  CheckpointSeries last({.folder = folder_});
  const LoadReport report = last.load_newest(run_.objects());
  EXPECT_EQ(report.checkpoint.folder.filename(), "checkpoint_2");
  EXPECT_EQ(report.checkpoint.step, 15);
  EXPECT_EQ(report.checkpoint.generation, 1);
}

TEST_F(CheckpointSeriesTest, DamagedAndIncompleteOnesArePassedOverWithANotice) {
  CheckpointSeries series({.folder = folder_});
  run_.custom.value = 5;
  series.save(run_.objects(), 1);
  run_.custom.value = 6;
  series.save(run_.objects(), 2);
  series.save(run_.objects(), 3);
  series.save(run_.objects(), 4);
  fs::remove(folder_ / "checkpoint_3" / "accel_checkpoint.json");
  fs::resize_file(folder_ / "checkpoint_2" / "optimizer.safetensors", 5);
  std::fstream(folder_ / "checkpoint_1" / "custom_checkpoint_0.json", std::ios::in | std::ios::out)
      << "[";

  const LoadReport report = CheckpointSeries({.folder = folder_}).load_newest(run_.objects());

  EXPECT_EQ(report.checkpoint.folder.filename(), "checkpoint_0");
  EXPECT_EQ(run_.custom.value, 5);
  EXPECT_THAT(report.notices, Contains(HasSubstr("checkpoint_3: ")));
  EXPECT_THAT(report.notices, Contains(HasSubstr("optimizer.safetensors has 5 bytes instead of")));
  EXPECT_THAT(report.notices,
              Contains(HasSubstr("custom_checkpoint_0.json is damaged: its XXH3 hash")));
}

// Files that one rank cannot read, as a hook that reads a file of its own there would meet them.
CheckpointHook unreadable(const checkpoint::RankExchange& ranks, std::vector<std::string> names) {
  return [names = std::move(names), is_here = ranks.rank() == 1](const fs::path& folder) {
    if (is_here && std::ranges::find(names, folder.filename().string()) != names.end())
      throw Error(ErrorCode::kFileIo, "cannot read: Input/output error");
  };
}

TEST_F(CheckpointSeriesTest, OneThatARankCannotReadIsPassedOverByAllRanks) {
  CheckpointSeries series({.folder = folder_});
  series.save(run_.objects(), 1);
  series.save(run_.objects(), 2);

  test::ThreadRanks(2).run([&](checkpoint::RankExchange& ranks) {
    TrainingRun run(1);
    CheckpointObjects objects = run.objects();
    objects.before_load = {unreadable(ranks, {"checkpoint_1"})};
    test::FaultyDisk disk;

    const LoadReport report =
        CheckpointSeries({.folder = folder_}, disk, ranks).load_newest(objects);

    EXPECT_EQ(report.checkpoint.step, 1);
    EXPECT_THAT(report.notices, Contains(HasSubstr("checkpoint_1: cannot read")));
  });
}

TEST_F(CheckpointSeriesTest, RunDoesNotStartAnewWhenNoneCanBeRead) {
  CheckpointSeries series({.folder = folder_});
  series.save(run_.objects(), 1);
  series.save(run_.objects(), 2);

  test::ThreadRanks(2).run([&](checkpoint::RankExchange& ranks) {
    TrainingRun run(1);
    CheckpointObjects objects = run.objects();
    objects.before_load = {unreadable(ranks, {"checkpoint_0", "checkpoint_1"})};
    test::FaultyDisk disk;
    CheckpointSeries unread({.folder = folder_}, disk, ranks);
    try {
      (void)unread.load_newest_if_any(objects);
      ADD_FAILURE() << "unreadable checkpoints counted as none";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kFileIo);
    }
  });
}

TEST_F(CheckpointSeriesTest, RunDoesNotStartAnewWhenAllAreDamaged) {
  CheckpointSeries series({.folder = folder_});
  for (std::int64_t step = 1; step <= 4; ++step) series.save(run_.objects(), step);
  fs::remove(folder_ / "checkpoint_0" / "accel_checkpoint.json");
  fs::remove(folder_ / "checkpoint_1" / "model.safetensors");
  fs::resize_file(folder_ / "checkpoint_2" / "optimizer.safetensors", 5);
  std::fstream(folder_ / "checkpoint_3" / "custom_checkpoint_0.json", std::ios::in | std::ios::out)
      << "[";

  test::ThreadRanks(2).run([&](checkpoint::RankExchange& ranks) {
    TrainingRun run(1);
    test::FaultyDisk disk;
    CheckpointSeries damaged({.folder = folder_}, disk, ranks);
    try {
      (void)damaged.load_newest_if_any(run.objects());
      ADD_FAILURE() << "damaged checkpoints counted as none";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCheckpointIncomplete);
      for (const char* fault : {"checkpoint_0: ",
                                "checkpoint_1: ",
                                "model.safetensors",
                                "optimizer.safetensors has 5 bytes instead of",
                                "custom_checkpoint_0.json is damaged"}) {
        EXPECT_THAT(error.render(), HasSubstr(fault)) << "rank " << ranks.rank();
      }
      EXPECT_THAT(error.remedy(), HasSubstr("move them away"));
    }
  });
}

TEST_F(CheckpointSeriesTest, RunStartsAnewWhereThereIsNone) {
  fs::create_directories(folder_ / ".tmp-checkpoint_0");
  EXPECT_FALSE(CheckpointSeries({.folder = folder_}).load_newest_if_any(run_.objects()));
}

TEST_F(CheckpointSeriesTest, SaveThatFailsOnceItsFolderIsThereDoesNotStopTheNextOnes) {
  test::ThreadRanks(2).run([&](checkpoint::RankExchange& ranks) {
    TrainingRun run(1);
    test::FaultyDisk disk;
    CheckpointSeries series({.folder = folder_}, disk, ranks);
    series.save(run.objects(), 1);
    disk.fail_sync_of(folder_);
    EXPECT_THROW(series.save(run.objects(), 2), Error);
    disk.fail_sync_of({});

    EXPECT_EQ(series.save(run.objects(), 3).iteration, 2);
  });
  EXPECT_THAT(names(), ElementsAre("checkpoint_0", "checkpoint_1", "checkpoint_2"));
}

TEST_F(CheckpointSeriesTest, NoCompleteCheckpointIsAnErrorThatListsWhatIsThere) {
  CheckpointSeries series({.folder = folder_});
  series.save(run_.objects(), 1);
  fs::remove(folder_ / "checkpoint_0" / "accel_checkpoint.json");

  try {
    series.load_newest(run_.objects());
    FAIL() << "an incomplete checkpoint was loaded";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCheckpointIncomplete);
    EXPECT_THAT(error.render(), HasSubstr("checkpoint_0: "));
  }
  EXPECT_TRUE(CheckpointSeries({.folder = scratch_.path() / "nowhere"}).complete().empty());
}

TEST_F(CheckpointSeriesTest, PruningLeavesWhatIsNotACompleteCheckpoint) {
  CheckpointSeries series({.folder = folder_, .total_limit = 1});
  series.save(run_.objects(), 1);
  fs::create_directories(folder_ / "checkpoint_07");
  fs::create_directories(folder_ / "checkpoint_best");
  std::ofstream(folder_ / "notes.txt") << "x";

  series.save(run_.objects(), 2);

  EXPECT_THAT(names(),
              ElementsAre("checkpoint_07", "checkpoint_1", "checkpoint_best", "notes.txt"));
}

TEST_F(CheckpointSeriesTest, LimitBelowOneIsRefused) {
  EXPECT_THROW(CheckpointSeries({.folder = folder_, .total_limit = 0}), Error);
}

}  // namespace
}  // namespace accel::checkpoint_series_test
