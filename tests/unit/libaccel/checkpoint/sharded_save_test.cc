// Checkpoints that several ranks write into the same files: what is in them, who can read them, and what is left when ranks
// are killed or a disk fills up. Parameters are divided by hand here, at cuts of the test's choice.

#include <csignal>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/async_save.h>
#include <accel/checkpoint.h>
#include <accel/error.h>

#include "libaccel/engine/checkpoint/series/background_save.h"
#include "libaccel/engine/checkpoint/series/checkpoint_reader.h"
#include "libaccel/engine/checkpoint/series/checkpoint_writer.h"
#include "libaccel/tensors/divided_tensors.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/fork_ranks.h"
#include "tests/support/names_in.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/thread_ranks.h"
#include "tests/unit/libaccel/checkpoint/divided_model.h"

namespace accel::sharded_save_test {
namespace {

namespace fs = std::filesystem;
using checkpoint::RankExchange;
using test::Divided;
using test::FaultyDisk;
using test::ForkRanks;
using test::names_in;
using test::ThreadRanks;
using test::WhenOneIsKilled;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

void save(checkpoint::FileSystem& disk, RankExchange& ranks, const fs::path& folder, int value) {
  Divided run(ranks, value);
  checkpoint::write_checkpoint(
      disk, ranks, folder, run.objects(), {.step = value}, checkpoint::Existing::kReplace);
}

void save_on(int num_ranks, const fs::path& folder, int value) {
  ThreadRanks(num_ranks).run(
      [&](RankExchange& ranks) { save(checkpoint::real_file_system(), ranks, folder, value); });
}

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(ShardedSave, MakesTheFileThatOneProcessWouldMake) {
  const test::ScratchFolder scratch;
  Divided whole(0, 1, 5);
  CheckpointObjects objects = whole.objects();
  objects.divided = nullptr;
  save_checkpoint(scratch.path() / "whole", objects);
  const std::string expected = contents(scratch.path() / "whole" / "model.safetensors");
  ASSERT_GT(expected.size(), 100u);

  for (const int num_ranks : {1, 2, 3, 4, 7}) {
    const fs::path folder = scratch.path() / std::to_string(num_ranks);
    save_on(num_ranks, folder, 5);
    EXPECT_TRUE(contents(folder / "model.safetensors") == expected) << num_ranks;
    EXPECT_EQ(read_checkpoint_info(folder).version, 2);
  }
  EXPECT_EQ(read_checkpoint_info(scratch.path() / "whole").version, 1);
}

TEST(ShardedSave, IsLoadedByAnyOtherNumberOfRanks) {
  const test::ScratchFolder scratch;
  for (const int before : {1, 2, 3, 4}) {
    const fs::path folder = scratch.path() / std::to_string(before);
    save_on(before, folder, 5);
    for (const int after : {1, 2, 3, 4, 9}) {
      ThreadRanks(after).run([&](RankExchange& ranks) {
        Divided run(ranks, 2);
        checkpoint::read_checkpoint(ranks, folder, run.objects());
        EXPECT_TRUE(run.has(5)) << before << " to " << after;
      });
    }
  }
}

TEST(ShardedSave, OfOneProcessIsLoadedByParts) {
  const test::ScratchFolder scratch;
  Divided whole(0, 1, 5);
  CheckpointObjects objects = whole.objects();
  objects.divided = nullptr;
  save_checkpoint(scratch.path() / "whole", objects);

  ThreadRanks(3).run([&](RankExchange& ranks) {
    Divided run(ranks, 2);
    checkpoint::read_checkpoint(ranks, scratch.path() / "whole", run.objects());
    EXPECT_TRUE(run.has(5));
  });
}

TEST(ShardedSave, ReplicaThatLeavesWritingToOthersStillReadsItsParts) {
  const test::ScratchFolder scratch;
  constexpr int kRanksOfReplica = 2;
  ThreadRanks(2 * kRanksOfReplica).run([&](RankExchange& ranks) {
    Divided run(ranks.rank() % kRanksOfReplica, kRanksOfReplica, 5);
    if (ranks.rank() >= kRanksOfReplica) run.divided.leave_writing_to_others();
    checkpoint::write_checkpoint(checkpoint::real_file_system(),
                                 ranks,
                                 scratch.path() / "saved",
                                 run.objects(),
                                 {},
                                 checkpoint::Existing::kReplace);
    for (const at::Tensor& parameter : run.net->parameters())
      for (const auto& part : *run.divided.find(parameter)) part.values.detach().zero_();

    checkpoint::read_checkpoint(ranks, scratch.path() / "saved", run.objects());

    EXPECT_TRUE(run.has(5)) << ranks.rank();
  });
}

TEST(ShardedSave, ADamagedPartIsNamedWithItsTensorAndRank) {
  const test::ScratchFolder scratch;
  const fs::path file = scratch.path() / "saved" / "model.safetensors";
  save_on(2, scratch.path() / "saved", 5);
  // The last tensor of the file by name is norm.weight; its second half is rank 1's.
  const auto place = static_cast<std::streamoff>(fs::file_size(file) - 1);
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(place).put('\x55');

  Divided run(0, 1, 2);
  try {
    load_checkpoint(scratch.path() / "saved", run.objects());
    FAIL() << "the damage was not seen";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCheckpointIncomplete);
    EXPECT_THAT(
        error.message(),
        AllOf(HasSubstr("model.safetensors is damaged: bytes "), HasSubstr("the part of rank ")));
  }
  EXPECT_TRUE(run.has(2));  // nothing was changed
}

TEST(ShardedSave, RanksThatDisagreeOnTheModelAreTold) {
  const test::ScratchFolder scratch;
  ThreadRanks(2).run([&](RankExchange& ranks) {
    Divided run(ranks, 5);
    if (ranks.rank() == 1)
      run.net->register_parameter("extra", at::arange(4, at::kFloat).requires_grad_());
    try {
      checkpoint::write_checkpoint(checkpoint::real_file_system(),
                                   ranks,
                                   scratch.path() / "saved",
                                   run.objects(),
                                   {},
                                   checkpoint::Existing::kReplace);
      ADD_FAILURE() << "ranks of different models made a checkpoint";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCheckpointMismatch);
      EXPECT_THAT(error.message(), HasSubstr("rank 1 would save other tensors than rank 0"));
    }
  });
  EXPECT_TRUE(fs::is_empty(scratch.path()));
}

TEST(ShardedSave, APartThatNobodyHasIsNoCheckpoint) {
  const test::ScratchFolder scratch;
  ThreadRanks(2).run([&](RankExchange& ranks) {
    Divided run(ranks.rank(), 3, 5);  // two ranks of three
    EXPECT_THROW(checkpoint::write_checkpoint(checkpoint::real_file_system(),
                                              ranks,
                                              scratch.path() / "saved",
                                              run.objects(),
                                              {},
                                              checkpoint::Existing::kReplace),
                 Error);
  });
  EXPECT_TRUE(fs::is_empty(scratch.path()));
}

TEST(ShardedSave, AFullDiskIsAnErrorOfEveryRankAndKeepsTheOldCheckpoint) {
  const test::ScratchFolder scratch;
  const fs::path folder = scratch.path() / "saved";
  save_on(2, folder, 5);

  for (const std::size_t free_bytes : {0u, 1000u, 1600u}) {
    ThreadRanks(2).run([&](RankExchange& ranks) {
      FaultyDisk disk;
      if (ranks.rank() == 0) disk.set_free_bytes(free_bytes);
      try {
        save(disk, ranks, folder, 6);
        ADD_FAILURE() << "a full disk took a checkpoint";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kDiskFull);
        EXPECT_THAT(error.what(), HasSubstr("rank 0"));
      }
    });
    Divided run(0, 1, 2);
    load_checkpoint(folder, run.objects());
    EXPECT_TRUE(run.has(5));
    EXPECT_EQ(names_in(scratch.path()), std::vector<std::string>{"saved"});
  }
}

// ---- killed ranks

// Ends the process at a step.
class KillingDisk final : public checkpoint::FileSystem {
 public:
  explicit KillingDisk(int steps) : steps_left_(steps) {}

  UniqueFd create_file(const fs::path& path) override { return step().create_file(path); }
  void reserve(int fd, std::uint64_t bytes, const fs::path& path) override {
    step().reserve(fd, bytes, path);
  }
  UniqueFd open_file(const fs::path& path) override { return step().open_file(path); }
  void write(int fd, std::span<const std::byte> bytes, const fs::path& path) override {
    step().write(fd, bytes, path);
  }
  void write_at(int fd,
                std::span<const std::byte> bytes,
                std::uint64_t offset,
                const fs::path& path) override {
    step().write_at(fd, bytes, offset, path);
  }
  void start_write_out(int fd, std::uint64_t offset, std::uint64_t bytes) noexcept override {
    step().start_write_out(fd, offset, bytes);
  }
  // A kill loses nothing that the kernel has: no need to wait for the device.
  void sync_file(int, const fs::path&) override { step(); }
  void make_folder(const fs::path& path) override { step().make_folder(path); }
  void sync_folder(const fs::path&) override { step(); }
  void rename(const fs::path& from, const fs::path& to) override { step().rename(from, to); }
  void exchange(const fs::path& a, const fs::path& b) override { step().exchange(a, b); }
  void remove(const fs::path& path) override { step().remove(path); }
  [[nodiscard]] int steps_left() const { return steps_left_; }

 private:
  checkpoint::FileSystem& step() {
    if (--steps_left_ < 0) ::raise(SIGKILL);
    return checkpoint::real_file_system();
  }
  int steps_left_;
};

enum class Thread { kForeground, kBackground };

// Makes an exchange that others own one that a save may own.
class BorrowedRanks final : public RankExchange {
 public:
  explicit BorrowedRanks(RankExchange& ranks) : ranks_(ranks) {}
  int rank() const override { return ranks_.rank(); }
  int size() const override { return ranks_.size(); }
  int local_rank() const override { return ranks_.local_rank(); }
  std::vector<std::string> all_gather(const std::string& mine) override {
    return ranks_.all_gather(mine);
  }

 private:
  RankExchange& ranks_;
};

void save_in_background(checkpoint::FileSystem& disk,
                        RankExchange& ranks,
                        RankExchange& of_thread,
                        const fs::path& folder,
                        int value) {
  checkpoint::BackgroundSaves saves;
  const auto make_ranks = [&](const std::string&, std::stop_token) {
    return std::make_unique<BorrowedRanks>(of_thread);
  };
  Divided run(ranks, value);
  AsyncSave saving = saves.begin(disk, ranks, make_ranks, folder, run.objects(), {.step = value});
  run.divide(ranks.rank(), ranks.size(), value + 1);  // goes on; the copy is what is saved
  saving.wait();
}

constexpr int kRanks = 3;
constexpr int kNever = 1 << 20;

// As save_on(), without waiting for the device.
void save_unkilled(const fs::path& folder, int value) {
  ThreadRanks(kRanks).run([&](RankExchange& ranks) {
    KillingDisk disk(kNever);
    save(disk, ranks, folder, value);
  });
}

// Of a save that replaces another, by rank.
std::vector<unsigned> steps_of_a_save(Thread thread) {
  const test::ScratchFolder scratch;
  const fs::path folder = scratch.path() / "saved";
  save_unkilled(folder, 1);
  std::vector<unsigned> steps(static_cast<std::size_t>(kRanks));
  ThreadRanks background(kRanks);
  ThreadRanks(kRanks).run([&](RankExchange& ranks) {
    KillingDisk disk(kNever);
    if (thread == Thread::kForeground) {
      save(disk, ranks, folder, 2);
    } else {
      save_in_background(disk, ranks, *background.member(ranks.rank()), folder, 2);
    }
    steps[static_cast<std::size_t>(ranks.rank())] =
        static_cast<unsigned>(kNever - disk.steps_left());
  });
  return steps;
}

struct Killing {
  WhenOneIsKilled when;
  Thread thread;
  int num_points;
};

class KilledSave : public ::testing::TestWithParam<Killing> {
 protected:
  // Returns whether the victim came to its step. The others end well by kPeerLost alone, or are killed too.
  static bool save_until_killed(const fs::path& folder, int victim, int step) {
    const auto ends =
        ForkRanks(kRanks).run(GetParam().when, [&](RankExchange& ranks, RankExchange& of_thread) {
          KillingDisk disk(ranks.rank() == victim ? step : kNever);
          try {
            if (GetParam().thread == Thread::kForeground) {
              save(disk, ranks, folder, 2);
            } else {
              save_in_background(disk, ranks, of_thread, folder, 2);
            }
          } catch (const Error& error) {
            if (error.code() != ErrorCode::kPeerLost) ::_exit(1);
          }
        });
    const bool was_killed = ends.is_killed(victim);
    for (int rank = 0; rank < kRanks; ++rank) {
      const bool may_be_killed =
          was_killed && (rank == victim || GetParam().when == WhenOneIsKilled::kAllAreKilled);
      EXPECT_TRUE(ends.is_well(rank) || (may_be_killed && ends.is_killed(rank))) << rank;
    }
    return was_killed;
  }

  // Returns its step.
  static std::int64_t expect_complete(const fs::path& folder) {
    const std::int64_t step = read_checkpoint_info(folder).step;
    Divided run(0, 1, 9);
    load_checkpoint(folder, run.objects());
    EXPECT_TRUE(run.has(static_cast<int>(step)));
    // What is left besides is of a name that no load looks at, and the next save removes it.
    for (const std::string& name : names_in(folder.parent_path()))
      EXPECT_TRUE(name == "saved" || name == ".tmp-saved") << name;
    save_unkilled(folder, 3);
    EXPECT_EQ(names_in(folder.parent_path()), std::vector<std::string>{"saved"});
    return step;
  }
};

TEST_P(KilledSave, LeavesACompleteCheckpointWhereverItWas) {
  std::mt19937 random(11);
  const std::vector<unsigned> steps = steps_of_a_save(GetParam().thread);
  int num_new = 0;
  int num_rounds = 0;
  for (int num_killed = 0; num_killed < GetParam().num_points;) {
    ASSERT_LT(num_rounds++, 4 * GetParam().num_points) << "killed: " << num_killed;
    const test::ScratchFolder scratch;
    const fs::path folder = scratch.path() / "saved";
    save_unkilled(folder, 1);
    const int victim = static_cast<int>(random() % kRanks);
    // Behind its last one, too: then nobody is killed.
    const int step = static_cast<int>(random() % (steps[static_cast<std::size_t>(victim)] + 1));
    SCOPED_TRACE("rank " + std::to_string(victim) + " at step " + std::to_string(step));

    num_killed += save_until_killed(folder, victim, step) ? 1 : 0;

    const std::int64_t found = expect_complete(folder);
    EXPECT_TRUE(found == 1 || found == 2) << found;
    num_new += found == 2 ? 1 : 0;
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(num_new, 0);
  EXPECT_LT(num_new, GetParam().num_points);
}

INSTANTIATE_TEST_SUITE_P(
    EveryWay,
    KilledSave,
    ::testing::Values(Killing{WhenOneIsKilled::kOthersNotice, Thread::kForeground, 100},
                      Killing{WhenOneIsKilled::kAllAreKilled, Thread::kForeground, 100},
                      Killing{WhenOneIsKilled::kOthersNotice, Thread::kBackground, 50},
                      Killing{WhenOneIsKilled::kAllAreKilled, Thread::kBackground, 50}),
    [](const auto& way) {
      return std::string(way.param.when == WhenOneIsKilled::kAllAreKilled ? "AllRanks"
                                                                          : "OneRank") +
             (way.param.thread == Thread::kBackground ? "InTheBackground" : "");
    });

}  // namespace
}  // namespace accel::sharded_save_test
