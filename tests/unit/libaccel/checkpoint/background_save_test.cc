// Saves in the background: what all ranks learn of one that fails on some of them.

#include "libaccel/engine/checkpoint/series/background_save.h"

#include <array>
#include <condition_variable>
#include <filesystem>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/async_save.h>
#include <accel/checkpoint.h>
#include <accel/error.h>

#include "tests/support/faulty_disk.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/thread_ranks.h"

namespace accel::background_save_test {
namespace {

namespace fs = std::filesystem;
using checkpoint::BackgroundSaves;
using checkpoint::RankExchange;
using test::FaultyDisk;
using test::ThreadRanks;
using ::testing::HasSubstr;

class Number final : public Stateful {
 public:
  StateDict state_dict() const override { return {.values = {{"value", std::int64_t{3}}}}; }
  void load_state_dict(const StateDict&) override {}
};

// The exchange of a rank whose peers never come.
class WaitingRanks final : public RankExchange {
 public:
  WaitingRanks(const RankExchange& like, std::stop_token stop)
      : rank_(like.rank()), size_(like.size()), stop_(std::move(stop)) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return rank_; }
  std::vector<std::string> all_gather(const std::string&) override {
    std::unique_lock lock(mutex_);
    never_.wait(lock, stop_, [] { return false; });
    throw Error(ErrorCode::kPeerLost, "given up");
  }

 private:
  int rank_;
  int size_;
  std::stop_token stop_;
  std::mutex mutex_;
  std::condition_variable_any never_;
};

class BackgroundSave : public ::testing::Test {
 protected:
  AsyncSave begin(BackgroundSaves& saves,
                  checkpoint::FileSystem& disk,
                  RankExchange& ranks,
                  const BackgroundSaves::MakeRanks& make_ranks) {
    Number number;
    return saves.begin(
        disk, ranks, make_ranks, folder_, CheckpointObjects{.custom = {&number}}, {});
  }
  AsyncSave begin(BackgroundSaves& saves, checkpoint::FileSystem& disk, RankExchange& ranks) {
    return begin(saves, disk, ranks, [&](const std::string&, std::stop_token) {
      return background_.member(ranks.rank());
    });
  }

  test::ScratchFolder scratch_;
  fs::path folder_ = scratch_.path() / "saved";
  ThreadRanks foreground_{2};
  ThreadRanks background_{2};
};

TEST_F(BackgroundSave, ErrorThatOneRankHasAskedForIsThrownOnAll) {
  foreground_.run([&](RankExchange& ranks) {
    FaultyDisk disk;
    if (ranks.rank() == 0) disk.set_free_bytes(0);
    BackgroundSaves saves;
    AsyncSave saving = begin(saves, disk, ranks);
    if (ranks.rank() == 1) {
      EXPECT_THROW(saving.wait(), Error);
    }

    try {
      (void)saves.end(ranks);
      ADD_FAILURE() << "rank " << ranks.rank() << " would go on alone";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDiskFull);
      EXPECT_THAT(error.what(), HasSubstr("rank 0"));
    }
    EXPECT_NO_THROW((void)saves.end(ranks));
  });
}

TEST_F(BackgroundSave, ErrorThatAllRanksHaveAskedForIsThrownOnNone) {
  foreground_.run([&](RankExchange& ranks) {
    FaultyDisk disk;
    if (ranks.rank() == 0) disk.set_free_bytes(0);
    BackgroundSaves saves;
    AsyncSave saving = begin(saves, disk, ranks);
    EXPECT_THROW(saving.wait(), Error);

    EXPECT_NO_THROW((void)saves.end(ranks));
  });
}

TEST_F(BackgroundSave, AssigningToItsHandleEndsIt) {
  foreground_.run([&](RankExchange& ranks) {
    FaultyDisk disk;
    if (ranks.rank() == 0) disk.set_free_bytes(0);
    BackgroundSaves saves;
    AsyncSave saving = begin(saves, disk, ranks);

    saving = AsyncSave();  // says so on stderr

    EXPECT_NO_THROW((void)saves.end(ranks)) << "the error was not taken";
  });
}

TEST_F(BackgroundSave, ThatOneRankCannotStartFailsOnAllAndLeavesNothing) {
  for (const int unable : {0, 1}) {
    foreground_.run([&](RankExchange& ranks) {
      FaultyDisk disk;
      BackgroundSaves saves;
      const auto make_ranks = [&](const std::string&,
                                  std::stop_token stop) -> std::unique_ptr<RankExchange> {
        if (ranks.rank() == unable) throw Error(ErrorCode::kStoreUnreachable, "no store here");
        return std::make_unique<WaitingRanks>(ranks, std::move(stop));
      };
      try {
        (void)begin(saves, disk, ranks, make_ranks);
        ADD_FAILURE() << "rank " << ranks.rank() << " saves alone";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kStoreUnreachable);
        EXPECT_THAT(error.what(), HasSubstr("rank " + std::to_string(unable)));
      }
    });
    EXPECT_TRUE(fs::is_empty(scratch_.path())) << "rank " << unable;
  }
}

TEST_F(BackgroundSave, HasANameThatNoRankHasUsed) {
  std::array<std::string, 2> names;
  foreground_.run([&](RankExchange& ranks) {
    FaultyDisk disk;
    BackgroundSaves saves;
    if (ranks.rank() == 1) {  // has saved once more than rank 0
      ThreadRanks alone(1);
      const auto own = alone.member(0);
      Number number;
      const fs::path folder = scratch_.path() / "alone";
      const auto make_ranks = [&](const std::string&, std::stop_token) { return alone.member(0); };
      saves.begin(disk, *own, make_ranks, folder, {.custom = {&number}}, {}).wait();
    }

    begin(saves, disk, ranks, [&](const std::string& name, std::stop_token) {
      names[static_cast<std::size_t>(ranks.rank())] = name;
      return background_.member(ranks.rank());
    }).wait();
  });
  EXPECT_EQ(names[0], "accel/checkpoint/1");
  EXPECT_EQ(names[1], names[0]);
}

}  // namespace
}  // namespace accel::background_save_test
