// In-memory checkpoints of ranks that are processes and are killed: what the restarted job finds. The memory is that of
// files, mapped; Accelerator and supervisor are in tests/integration/memory.

#include "libaccel/engine/checkpoint/memory/memory_checkpoints.h"

#include <array>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>

#include "libaccel/engine/checkpoint/states/optimizer_state.h"
#include "libaccel/engine/checkpoint/states/replica_shares.h"
#include "tests/support/file_keeper.h"
#include "tests/support/fork_ranks.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/thread_ranks.h"
#include "tests/unit/libaccel/checkpoint/divided_model.h"
#include "tests/unit/libaccel/checkpoint/training_run.h"

namespace accel::checkpoint::memory_checkpoints_test {
namespace {

using test::Divided;
using test::FileKeeper;
using test::ForkRanks;
using test::ThreadRanks;
using test::TrainingRun;
using test::WhenOneIsKilled;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class MemoryCheckpointsTest : public ::testing::Test {
 protected:
  test::ScratchFolder scratch_;

  void save_on(int num_ranks, int value, DiskMark newest_on_disk = {}) {
    ThreadRanks(num_ranks).run([&](RankExchange& ranks) {
      FileKeeper keeper(scratch_.path());
      Divided run(ranks, value);
      std::ignore = MemoryCheckpoints(keeper).save(
          ranks, run.objects(), {.step = value, .newest_on_disk = newest_on_disk});
    });
  }
  // The step that all ranks load and have the state of; 0: none.
  std::int64_t loaded_by(int num_ranks, std::string* why_not = nullptr) {
    std::atomic<std::int64_t> step{-1};
    ThreadRanks(num_ranks).run([&](RankExchange& ranks) {
      FileKeeper keeper(scratch_.path());
      Divided run(ranks, 0);
      std::string why;
      const auto report = MemoryCheckpoints(keeper).load(ranks, run.objects(), why);
      EXPECT_EQ(report.has_value(), why.empty());
      EXPECT_TRUE(run.has(report ? static_cast<int>(report->checkpoint.step) : 0));
      if (ranks.rank() == 0) {
        step = report ? report->checkpoint.step : 0;
        if (why_not != nullptr) *why_not = why;
      }
    });
    return step;
  }
};

TEST_F(MemoryCheckpointsTest, RunGoesOnAsIfItHadNotBeenInterrupted) {
  FileKeeper keeper(scratch_.path());
  ThreadRanks(1).run([&](RankExchange& ranks) {
    TrainingRun run(1);
    run.train(3);
    const auto saved =
        MemoryCheckpoints(keeper).save(ranks, run.objects(), {.step = 3, .generation = 1});
    EXPECT_EQ(saved.step, 3);
    run.train(2);

    TrainingRun other(2);
    std::string why_not;
    const auto report = MemoryCheckpoints(keeper).load(ranks, other.objects(), why_not);

    ASSERT_TRUE(report) << why_not;
    EXPECT_EQ(report->checkpoint.step, 3);
    EXPECT_EQ(report->checkpoint.generation, 1);
    EXPECT_EQ(report->checkpoint.world_size, 1);
    EXPECT_THAT(report->checkpoint.folder.string(), IsEmpty());
    EXPECT_THAT(report->notices, IsEmpty());
    other.train(2);
    for (std::size_t i = 0; i < run.tensors().size(); ++i)
      EXPECT_TRUE(run.tensors()[i].second.equal(other.tensors()[i].second))
          << run.tensors()[i].first;
    EXPECT_EQ(other.custom.value, run.custom.value);
    EXPECT_EQ(other.loader.value, run.loader.value);
  });
}

TEST_F(MemoryCheckpointsTest, EachRankGetsItsOwnPartsAndTheNewestCounts) {
  for (const int value : {1, 2, 3}) save_on(3, value);
  EXPECT_EQ(loaded_by(3), 3);
}

TEST_F(MemoryCheckpointsTest, WhatIsTheSameOnAllRanksIsKeptOnceANode) {
  // Copies: every rank has the whole model, and nothing is divided.
  std::array<std::uint64_t, 2> bytes{};
  for (const int size : {1, 4}) {
    const test::ScratchFolder scratch;
    std::string text;
    ThreadRanks(size).run([&](RankExchange& ranks) {
      FileKeeper keeper(scratch.path());
      TrainingRun run(1, 4096);
      run.train(1);
      MemoryCheckpoints(keeper).reserve(ranks, run.objects(), 0);
    });
    bytes[size == 1 ? 0 : 1] = std::filesystem::file_size(scratch.path() / "accel.memory.1");
  }
  EXPECT_LT(bytes[1], bytes[0] + 3 * 2 * (std::uint64_t{32} << 10));
}

// A run that is the same on all ranks, of which this one keeps a share.
struct SharedRun : TrainingRun {
  explicit SharedRun(const Sharer& sharer) : TrainingRun(1, 4096) {
    train(2);
    std::vector<at::Tensor> tensors;
    for (const at::Tensor& parameter : net->parameters()) {
      tensors.push_back(parameter);
      for (const at::Tensor& state : state_tensors(*optimizer, parameter)) tensors.push_back(state);
    }
    add_shares(tensors, sharer, divided);
  }
  CheckpointObjects objects() {
    CheckpointObjects objects = TrainingRun::objects();
    objects.divided = &divided;
    return objects;
  }
  DividedTensors divided;
};

TEST_F(MemoryCheckpointsTest, SharesOfCopiesMakeTheCopyOnEachRank) {
  constexpr int kRanks = 3;
  std::array<std::uint64_t, kRanks> copied{};
  ThreadRanks(kRanks).run([&](RankExchange& ranks) {
    FileKeeper keeper(scratch_.path());
    SharedRun run({.place = ranks.rank(), .count = kRanks});
    MemoryCheckpoints checkpoints(keeper, {.on_size = {}, .on_copy = [&](std::uint64_t bytes) {
                                             copied.at(ranks.rank()) = bytes;
                                           }});
    std::ignore = checkpoints.save(ranks, run.objects(), {.step = 2});
  });
  ThreadRanks(kRanks).run([&](RankExchange& ranks) {
    FileKeeper keeper(scratch_.path());
    const SharedRun saved({});
    TrainingRun run(7, 4096);
    std::string why_not;
    ASSERT_TRUE(MemoryCheckpoints(keeper).load(ranks, run.objects(), why_not)) << why_not;
    for (std::size_t i = 0; i < run.tensors().size(); ++i)
      EXPECT_TRUE(run.tensors()[i].second.equal(saved.tensors()[i].second)) << i;
  });
  // The first has texts and buffers too.
  for (int rank = 1; rank < kRanks; ++rank) EXPECT_NEAR(copied[0], copied[rank], 64 << 10) << rank;
}

TEST_F(MemoryCheckpointsTest, SharesThatLeaveAHoleAreNotLoaded) {
  ThreadRanks(2).run([&](RankExchange& ranks) {
    FileKeeper keeper(scratch_.path());
    SharedRun run({.place = 0, .count = 2});  // on both
    std::ignore = MemoryCheckpoints(keeper).save(ranks, run.objects(), {.step = 2});
  });
  ThreadRanks(2).run([&](RankExchange& ranks) {
    FileKeeper keeper(scratch_.path());
    TrainingRun run(7, 4096);
    std::string why_not;
    EXPECT_FALSE(MemoryCheckpoints(keeper).load(ranks, run.objects(), why_not));
    EXPECT_THAT(why_not, HasSubstr("than this rank holds now"));
  });
}

TEST_F(MemoryCheckpointsTest, MemoryIsTakenAndToldOnceUntilTheStateGrows) {
  std::vector<std::string> told;
  ThreadRanks(1).run([&](RankExchange& ranks) {
    FileKeeper keeper(scratch_.path());
    MemoryCheckpoints checkpoints(
        keeper, {.on_size = [&](const std::string& text) { told.push_back(text); }, .on_copy = {}});
    TrainingRun run(1, 64 << 10);  // 2.5 MiB of parameters, 5 more with the optimizer's states
    checkpoints.reserve(ranks, run.objects(), 0);
    std::ignore = checkpoints.save(ranks, run.objects(), {.step = 0});
    EXPECT_EQ(told.size(), 1);
    run.train(1);
    std::ignore = checkpoints.save(ranks, run.objects(), {.step = 1});
    std::ignore = checkpoints.save(ranks, run.objects(), {.step = 2});
    TrainingRun other(2, 64 << 10);
    std::string why_not;
    const auto report = MemoryCheckpoints(keeper).load(ranks, other.objects(), why_not);
    ASSERT_TRUE(report);
    EXPECT_EQ(report->checkpoint.step, 2);
  });
  EXPECT_EQ(told.size(), 2);
  EXPECT_THAT(told.at(0), HasSubstr("in-memory checkpoints take 2 x "));
  EXPECT_THAT(told.at(0), HasSubstr(" MiB of memory on this node"));
}

// Every rank is killed with the first that dies, as a job is; the first dies after a random number of bytes of a random save.
TEST_F(MemoryCheckpointsTest, KilledInTheMiddleOfACopyTheOneBeforeIsThere) {
  std::mt19937 pick(1);
  for (int trial = 0; trial < 60; ++trial) {
    const test::ScratchFolder scratch;
    const int victim = std::uniform_int_distribution(0, 2)(pick);
    const int last = std::uniform_int_distribution(1, 4)(pick);
    const bool is_before_the_end = std::uniform_int_distribution(0, 1)(pick) == 1;
    const auto ends = ForkRanks(3).run(WhenOneIsKilled::kAllAreKilled, [&](RankExchange& ranks) {
      FileKeeper keeper(scratch.path());
      int value = 0;
      int pieces = 0;  // of this save, copied
      MemoryCheckpoints checkpoints(keeper,
                                    {.on_size = {}, .on_copy = [&](std::uint64_t) {
                                       const bool is_time = ++pieces == (is_before_the_end ? 1 : 3);
                                       if (ranks.rank() == victim && value == last && is_time)
                                         ::raise(SIGKILL);
                                     }});
      for (value = 1; value <= last; ++value) {
        pieces = 0;
        Divided run(ranks, value);
        std::ignore = checkpoints.save(ranks, run.objects(), {.step = value});
      }
    });
    ASSERT_TRUE(ends.is_killed(victim));
    std::atomic<std::int64_t> step{-1};
    ThreadRanks(3).run([&](RankExchange& ranks) {
      FileKeeper keeper(scratch.path());
      Divided run(ranks, 0);
      std::string why_not;
      MemoryCheckpoints checkpoints(keeper);
      const auto report = checkpoints.load(ranks, run.objects(), why_not);
      const int value = report ? static_cast<int>(report->checkpoint.step) : 0;
      EXPECT_TRUE(run.has(value));
      if (ranks.rank() == 0) step = value;
      // Goes on, and is killed no more.
      run.divide(ranks.rank(), ranks.size(), 9);
      std::ignore = checkpoints.save(ranks, run.objects(), {.step = 9});
      Divided other(ranks, 0);
      const auto again = checkpoints.load(ranks, other.objects(), why_not);
      EXPECT_TRUE(again && other.has(9));
    });
    EXPECT_EQ(step, last - 1) << "trial " << trial;
  }
}

TEST_F(MemoryCheckpointsTest, SaveAfterAFallBackLeavesTheOneThatAllHave) {
  save_on(2, 1);
  save_on(2, 2);
  // Rank 1's part of step 2 is lost: step 1 is what both have.
  {
    FileKeeper keeper(scratch_.path());
    NodeMemory memory(keeper);
    memory.open();
    const auto slots = memory.slots(1, 1);
    for (const auto slot : *slots) {
      if (read_slot(slot)->stamp.step == 2) std::ignore = SlotWriter(slot);
    }
  }
  ASSERT_EQ(loaded_by(2), 1);
  // Killed in the next save, which must not have touched step 1 on any rank.
  const auto ends = ForkRanks(2).run(WhenOneIsKilled::kAllAreKilled, [&](RankExchange& ranks) {
    FileKeeper keeper(scratch_.path());
    MemoryCheckpoints checkpoints(keeper, {.on_size = {}, .on_copy = [&](std::uint64_t) {
                                             if (ranks.rank() == 1) ::raise(SIGKILL);
                                           }});
    Divided run(ranks, 3);
    std::ignore = checkpoints.save(ranks, run.objects(), {.step = 3});
  });
  EXPECT_TRUE(ends.is_killed(1));
  EXPECT_EQ(loaded_by(2), 1);
}

// A rank that was in another group of ranks may have a part that the group gave the same serial.
TEST_F(MemoryCheckpointsTest, PartOfAnotherGroupWithTheSameSerialIsNeitherLoadedNorSpared) {
  save_on(1, 1);
  save_on(1, 2);
  {
    FileKeeper keeper(scratch_.path());
    NodeMemory memory(keeper);
    memory.open();
    const auto slots = memory.slots(0, 1);
    ASSERT_EQ(read_slot(slots->front())->stamp.step, 1);
    const MemoryStamp newest = read_slot(slots->back())->stamp;
    SlotWriter(slots->front())
        .complete({.serial = newest.serial, .generation = 9, .step = 7, .world_size = 3});
  }
  EXPECT_EQ(loaded_by(1), 2);

  ThreadRanks(1).run([&](RankExchange& ranks) {
    FileKeeper keeper(scratch_.path());
    MemoryCheckpoints checkpoints(keeper, {.on_size = {}, .on_copy = [](std::uint64_t) {
                                             throw Error(ErrorCode::kInternal,
                                                         "ended in the middle of a copy");
                                           }});
    Divided run(ranks, 3);
    EXPECT_THROW(std::ignore = checkpoints.save(ranks, run.objects(), {.step = 3}), Error);
  });
  EXPECT_EQ(loaded_by(1), 2);
}

TEST_F(MemoryCheckpointsTest, DamagedPartMakesAllRanksTakeTheOneBefore) {
  save_on(2, 1);
  save_on(2, 2);
  FileKeeper keeper(scratch_.path());
  NodeMemory memory(keeper);
  memory.open();
  const auto slots = memory.slots(1, 1);
  for (const auto slot : *slots) {
    if (read_slot(slot)->stamp.step == 2) slot[kSlotHeaderBytes + 300] ^= std::byte{1};
  }
  EXPECT_EQ(loaded_by(2), 1);
}

TEST_F(MemoryCheckpointsTest, AnotherNumberOfRanksFindsNone) {
  save_on(3, 5);
  std::string why_not;
  EXPECT_EQ(loaded_by(2, &why_not), 0);
  EXPECT_EQ(why_not, "that of step 5 of generation 0 was saved by 3 ranks, now there are 2");
  save_on(2, 6);
  EXPECT_EQ(loaded_by(2), 6);
}

TEST_F(MemoryCheckpointsTest, WhatDoesNotFitTheObjectsChangesNothing) {
  FileKeeper keeper(scratch_.path());
  ThreadRanks(1).run([&](RankExchange& ranks) {
    TrainingRun run(1);
    std::ignore = MemoryCheckpoints(keeper).save(ranks, run.objects(), {.step = 1});
    TrainingRun other(2, 7);
    const at::Tensor before = other.net->first->weight.detach().clone();
    std::string why_not;
    EXPECT_FALSE(MemoryCheckpoints(keeper).load(ranks, other.objects(), why_not));
    EXPECT_THAT(why_not, HasSubstr("first.weight"));
    EXPECT_TRUE(other.net->first->weight.equal(before));
  });
}

// A job goes on with other nodes: not a restart by its count, but not its begin either.
TEST_F(MemoryCheckpointsTest, KnowsThatTheJobHasBegunBeforeWhereAnyNodeDoes) {
  const auto has_begun = [&](int num_ranks, std::uint64_t generation) {
    std::atomic<int> answers{0};
    ThreadRanks(num_ranks, 2).run([&](RankExchange& ranks) {
      const auto folder = scratch_.path() / std::to_string(ranks.rank() / 2);
      std::filesystem::create_directories(folder);
      FileKeeper keeper(folder);
      MemoryCheckpoints checkpoints(keeper);
      for (int time = 0; time < 2; ++time)
        answers += checkpoints.has_begun_before(ranks, generation) ? 1 : 0;
    });
    return answers.load();
  };

  EXPECT_EQ(has_begun(2, 1), 0);
  EXPECT_EQ(has_begun(2, 1), 0) << "asked again in the same generation";
  EXPECT_EQ(has_begun(4, 2), 8) << "a node joins";
  EXPECT_EQ(has_begun(2, 3), 4);
}

// HYBRID_SHARD: divided inside of each node, and the same on all.
TEST_F(MemoryCheckpointsTest, EachNodeKeepsAReplicaOfPartsAndTheNewestOfAllNodesCounts) {
  const auto folder_of = [&](int rank) { return scratch_.path() / std::to_string(rank / 2); };
  const auto save = [&](int value, int killed_node) {
    const auto ends = ForkRanks(4, 2).run(WhenOneIsKilled::kAllAreKilled, [&](RankExchange& ranks) {
      std::filesystem::create_directories(folder_of(ranks.rank()));
      FileKeeper keeper(folder_of(ranks.rank()));
      Divided run(ranks.local_rank(), 2, value);
      MemoryCheckpoints checkpoints(keeper, {.on_size = {}, .on_copy = [&](std::uint64_t) {
                                               if (ranks.rank() / 2 == killed_node)
                                                 ::raise(SIGKILL);
                                             }});
      std::ignore = checkpoints.save(ranks, run.objects(), {.step = value});
    });
    EXPECT_EQ(ends.are_all_well(), killed_node < 0);
  };
  const auto loaded = [&](std::string* why_not) {
    std::atomic<std::int64_t> step{-1};
    ThreadRanks(4, 2).run([&](RankExchange& ranks) {
      std::filesystem::create_directories(folder_of(ranks.rank()));
      FileKeeper keeper(folder_of(ranks.rank()));
      Divided run(ranks.local_rank(), 2, 0);
      std::string why;
      const auto report = MemoryCheckpoints(keeper).load(ranks, run.objects(), why);
      EXPECT_TRUE(run.has(report ? static_cast<int>(report->checkpoint.step) : 0));
      if (ranks.rank() != 0) return;
      step = report ? report->checkpoint.step : 0;
      *why_not = why;
    });
    return step.load();
  };
  std::string why_not;

  save(1, -1);
  save(2, -1);
  EXPECT_EQ(loaded(&why_not), 2);
  save(3, 1);  // one node has it whole, the other dies
  EXPECT_EQ(loaded(&why_not), 2);
  std::filesystem::remove_all(folder_of(2));
  EXPECT_EQ(loaded(&why_not), 0);
  EXPECT_THAT(why_not, HasSubstr("rank 2 has no part of that of step "));
}

TEST_F(MemoryCheckpointsTest, TellsWhatWasOnDiskWhenItWasSaved) {
  save_on(2, 1, {17, 3});
  ThreadRanks(2).run([&](RankExchange& ranks) {
    FileKeeper keeper(scratch_.path());
    const auto found = MemoryCheckpoints(keeper).find(ranks);
    ASSERT_TRUE(found.choice.stamp);
    EXPECT_EQ(found.newest_on_disk.number, 17);
    EXPECT_EQ(found.newest_on_disk.generation, 3);
  });
}

}  // namespace
}  // namespace accel::checkpoint::memory_checkpoints_test
