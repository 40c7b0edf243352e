// In-memory checkpoints that cannot be kept: an error on all ranks, and nothing lost.

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>

#include "libaccel/engine/checkpoint/memory/memory_checkpoints.h"
#include "tests/support/file_keeper.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/thread_ranks.h"
#include "tests/unit/libaccel/checkpoint/divided_model.h"

namespace accel::checkpoint::memory_refusals_test {
namespace {

using test::Divided;
using test::FileKeeper;
using test::ThreadRanks;
using ::testing::HasSubstr;

class MemoryRefusals : public ::testing::Test {
 protected:
  test::ScratchFolder scratch_;
};

// A rank that cannot map a piece, as when the supervisor does not answer in time.
class FailingKeeper final : public MemoryKeeper {
 public:
  explicit FailingKeeper(std::filesystem::path folder) : files_(std::move(folder)) {}
  std::string fails_for;

  Result<std::span<std::byte>> get(const std::string& name, std::size_t bytes) override {
    if (name == fails_for) return Error(ErrorCode::kPeerLost, "no answer about " + name);
    return files_.get(name, bytes);
  }
  void unmap(std::span<std::byte> memory) override { files_.unmap(memory); }
  void drop(const std::string& name) override { files_.drop(name); }
  std::uint64_t free_bytes() const override { return files_.free_bytes(); }
  std::vector<CgroupRoom> rooms() const override { return {}; }

 private:
  FileKeeper files_;
};

// A growth that failed on one rank leaves the others of its node, or those of another node, with a newer piece.
TEST_F(MemoryRefusals, SaveAfterAGrowthThatFailedOnOneRankLosesNothing) {
  for (const int failing : {0, 1, 2}) {
    const test::ScratchFolder scratch;
    ThreadRanks(4, 2).run([&](RankExchange& ranks) {
      const int node = ranks.rank() / 2;
      const auto folder = scratch.path() / std::to_string(node);
      std::filesystem::create_directories(folder);
      FailingKeeper keeper(folder);
      MemoryCheckpoints checkpoints(keeper);
      Divided run(ranks, 1);
      std::ignore = checkpoints.save(ranks, run.objects(), {.step = 1});

      if (ranks.rank() == failing) keeper.fails_for = "accel.memory.2";
      EXPECT_THROW(checkpoints.reserve(ranks, run.objects(), ranks.rank() % 2 == 0 ? 1 << 20 : 0),
                   Error);
      keeper.fails_for.clear();
      run.divide(ranks.rank(), ranks.size(), 2);
      std::ignore = checkpoints.save(ranks, run.objects(), {.step = 2});
    });

    ThreadRanks(4, 2).run([&](RankExchange& ranks) {
      FileKeeper keeper(scratch.path() / std::to_string(ranks.rank() / 2));
      Divided run(ranks, 0);
      std::string why_not;
      const auto report = MemoryCheckpoints(keeper).load(ranks, run.objects(), why_not);
      EXPECT_TRUE(report && report->checkpoint.step == 2) << failing << ": " << why_not;
      EXPECT_TRUE(run.has(2));
    });
  }
}

TEST_F(MemoryRefusals, HooksAreRefusedOnAllRanks) {
  ThreadRanks(2).run([&](RankExchange& ranks) {
    FileKeeper keeper(scratch_.path());
    Divided run(ranks, 1);
    CheckpointObjects objects = run.objects();
    if (ranks.rank() == 1) objects.before_save.emplace_back([](const std::filesystem::path&) {});
    try {
      std::ignore = MemoryCheckpoints(keeper).save(ranks, objects, {.step = 1});
      ADD_FAILURE() << "saved";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_THAT(error.remedy(), HasSubstr("register_for_checkpointing"));
    }
  });
}

TEST_F(MemoryRefusals, NodeWithoutEnoughMemoryIsAnErrorOnAllRanks) {
  ThreadRanks(2).run([&](RankExchange& ranks) {
    FileKeeper keeper(scratch_.path());
    keeper.free = 1000;
    Divided run(ranks, 1);
    try {
      MemoryCheckpoints(keeper).reserve(ranks, run.objects(), 0);
      ADD_FAILURE() << "reserved";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    }
  });
}

TEST_F(MemoryRefusals, LimitOfOneRanksCgroupIsAnErrorOnAllRanks) {
  ThreadRanks(2).run([&](RankExchange& ranks) {
    FileKeeper keeper(scratch_.path());
    if (ranks.rank() == 1) keeper.limits = {{"/cg/rank-1/memory.max", 4 << 20, 1 << 20}};
    Divided run(ranks, 1);
    MemoryCheckpoints checkpoints(keeper);
    try {
      checkpoints.reserve(ranks, run.objects(), 1 << 20);
      ADD_FAILURE() << "reserved";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
      EXPECT_THAT(error.message(), HasSubstr("in-memory checkpoints of rank 1 would take 2.1 MiB"));
      EXPECT_THAT(error.message(), HasSubstr("1.0 MiB of the 4.0 MiB of /cg/rank-1/memory.max"));
      EXPECT_THAT(error.remedy(), HasSubstr("raise that limit"));
    }
    checkpoints.reserve(ranks, run.objects(), 0);
  });
}

}  // namespace
}  // namespace accel::checkpoint::memory_refusals_test
