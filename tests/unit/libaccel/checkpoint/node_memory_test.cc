#include "libaccel/engine/checkpoint/memory/node_memory.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>

#include "tests/support/file_keeper.h"
#include "tests/support/scratch_folder.h"

namespace accel::checkpoint::node_memory_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;
using Member = NodeMemory::Member;

constexpr MemoryStamp kFirst{.serial = 1, .world_size = 2};

class NodeMemoryTest : public ::testing::Test {
 protected:
  test::ScratchFolder scratch_;
  test::FileKeeper keeper_{scratch_.path()};

  NodeMemory opened() {
    NodeMemory memory(keeper_);
    memory.open();
    return memory;
  }
  static void fill(std::span<std::byte> slot, std::int64_t serial, int rank) {
    const std::string text = "content " + std::to_string(serial);
    SlotWriter writer(slot);
    writer.append(std::as_bytes(std::span(text)));
    writer.complete({.serial = serial, .world_size = 2, .rank = rank});
  }
};

TEST_F(NodeMemoryTest, HasNothingAtFirst) {
  const NodeMemory memory = opened();
  EXPECT_THAT(memory.filled(0), SizeIs(0));
  EXPECT_FALSE(memory.slots(0, 1));
}

TEST_F(NodeMemoryTest, GivesEachRankTwoSlotsOfItsOwn) {
  NodeMemory memory = opened();
  std::ignore = memory.take({{4, 100'000}, {5, 10}}, {});
  fill(memory.slots(4, 100'000)->front(), 1, 4);
  fill(memory.slots(4, 100'000)->back(), 2, 4);
  fill(memory.slots(5, 10)->front(), 1, 5);

  const NodeMemory again = opened();

  EXPECT_THAT(again.filled(4), SizeIs(2));
  EXPECT_THAT(again.filled(5), SizeIs(1));
  EXPECT_THAT(again.filled(0), SizeIs(0));
  EXPECT_GE(again.slots(4, 100'000)->back().size(), 100'000 + kSlotHeaderBytes);
  EXPECT_FALSE(again.slots(4, 200'000)) << "an area that is too small";
}

TEST_F(NodeMemoryTest, KeepsTheOlderPieceUntilItIsDropped) {
  NodeMemory memory = opened();
  std::ignore = memory.take({{0, 10}}, {});
  fill(memory.slots(0, 10)->front(), 1, 0);
  std::ignore = memory.take({{0, 500'000}}, kFirst);
  EXPECT_THAT(opened().filled(0), SizeIs(1)) << "killed before the first save into the new piece";
  fill(memory.slots(0, 500'000)->front(), 2, 0);
  EXPECT_THAT(opened().filled(0), SizeIs(2));

  memory.drop_older(Member::kFirst);

  const auto filled = opened().filled(0);
  ASSERT_THAT(filled, SizeIs(1));
  EXPECT_EQ(filled[0].stamp.serial, 2);
}

TEST_F(NodeMemoryTest, PieceWithTheAgreedCheckpointOutlivesSeveralThatWereNotUsed) {
  NodeMemory first = opened();
  std::ignore = first.take({{0, 10}}, {});
  fill(first.slots(0, 10)->front(), 1, 0);
  for (int i = 1; i < 6; ++i) {
    NodeMemory next = opened();
    std::ignore = next.take({{0, i * 100'000U}}, kFirst);
    ASSERT_THAT(opened().filled(0), SizeIs(1)) << i;
  }
}

// Nodes that were apart may have used one serial twice.
TEST_F(NodeMemoryTest, PieceWithTheAgreedCheckpointOutlivesOneOfTheSameSerial) {
  NodeMemory memory = opened();
  std::ignore = memory.take({{0, 10}}, {});
  SlotWriter(memory.slots(0, 10)->front()).complete({.serial = 1, .generation = 3});
  std::ignore = memory.take({{0, 100'000}}, {});
  fill(memory.slots(0, 100'000)->front(), 1, 0);

  std::ignore = memory.take({{0, 200'000}}, kFirst);

  const auto filled = opened().filled(0);
  ASSERT_THAT(filled, SizeIs(1));
  EXPECT_TRUE(filled[0].stamp.is_with(kFirst));
}

TEST_F(NodeMemoryTest, NameThatAKilledProcessTookInVainIsPassedOver) {
  std::ignore = keeper_.get("accel.memory.1", 8192);
  NodeMemory memory = opened();
  std::ignore = memory.take({{0, 10}}, {});
  fill(memory.slots(0, 10)->front(), 1, 0);

  EXPECT_THAT(opened().filled(0), SizeIs(1));
}

TEST_F(NodeMemoryTest, DamagedDirectoryOrIndexIsAsIfThereWereNothing) {
  NodeMemory memory = opened();
  const MemoryPiece piece = memory.take({{0, 10}}, {});
  fill(memory.slots(0, 10)->front(), 1, 0);
  for (const char* name : {"accel.memory.1", "accel.memory.index"}) {
    const auto bytes = std::string_view(name).ends_with("index") ? 4096 : piece.bytes;
    const std::span<std::byte> raw = keeper_.get(name, bytes).value();
    for (std::size_t i = 0; i < 40; ++i) {
      raw[i] ^= std::byte{0x20};
      EXPECT_THAT(opened().filled(0), SizeIs(0)) << name << " " << i;
      raw[i] ^= std::byte{0x20};
    }
  }
  EXPECT_THAT(opened().filled(0), SizeIs(1));
}

TEST_F(NodeMemoryTest, MoreThanTheMachineHasFreeIsRefusedWithTheBytes) {
  keeper_.free = 3 << 20;
  NodeMemory memory = opened();
  try {
    std::ignore = memory.take({{0, 2 << 20}}, {});
    FAIL() << "taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_THAT(error.message(), HasSubstr("would take 4.2 MiB of memory on this node"));
    EXPECT_THAT(error.message(), HasSubstr("3.0 MiB are free"));
    EXPECT_THAT(error.remedy(), HasSubstr("memory_checkpoint_every"));
  }
  EXPECT_FALSE(memory.slots(0, 1));
}

TEST_F(NodeMemoryTest, CgroupAboveSeveralRanksMustHoldWhatAllOfThemWrite) {
  const CgroupRoom job{"/cg/job/memory.max", 8 << 20, 5 << 20};
  const auto wish = [&](int rank) { return AreaWish{rank, 1 << 20, {job}}; };
  NodeMemory memory = opened();

  std::ignore = memory.take({wish(0), wish(1)}, {});
  try {
    std::ignore = memory.take({wish(0), wish(1), wish(2)}, {});
    FAIL() << "taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_THAT(error.message(), HasSubstr("rank 0, 1, 2 would take 6."));
    EXPECT_THAT(error.message(), HasSubstr("5.0 MiB of the 8.0 MiB of /cg/job/memory.max"));
  }
}

// As the supervisor keeps it: a memfd, which has no name to look at but a number of blocks.
class MemfdKeeper final : public MemoryKeeper {
 public:
  Result<std::span<std::byte>> get(const std::string& name, std::size_t bytes) override {
    UniqueFd& file = files[name];
    if (!file) {
      file.reset(::memfd_create(name.c_str(), MFD_CLOEXEC));
      if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0)
        return Error(ErrorCode::kFileIo, name);
    }
    void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    return std::span(static_cast<std::byte*>(data), bytes);
  }
  void unmap(std::span<std::byte> memory) override { ::munmap(memory.data(), memory.size()); }
  void drop(const std::string& name) override { files.erase(name); }
  std::uint64_t free_bytes() const override { return std::uint64_t{1} << 40; }
  std::vector<CgroupRoom> rooms() const override { return {}; }
  [[nodiscard]] std::uint64_t bytes_in_use(const std::string& name) {
    struct stat status {};
    ::fstat(files.at(name).get(), &status);
    return static_cast<std::uint64_t>(status.st_blocks) * 512;
  }

  std::map<std::string, UniqueFd> files;
};

TEST(NodeMemory, TakesThePagesOfARankBeforeTheyAreWritten) {
  MemfdKeeper keeper;
  NodeMemory memory(keeper);
  memory.open();
  std::ignore = memory.take({{0, 1 << 20}, {1, 1 << 20}}, {});
  if (::madvise(memory.slots(0, 1)->front().data(), 4096, MADV_POPULATE_WRITE) != 0)
    GTEST_SKIP() << "this kernel cannot take pages beforehand";
  memory.populate(0);
  const std::uint64_t own = memory.slots(0, 1)->front().size() * 2;
  EXPECT_GE(keeper.bytes_in_use("accel.memory.1"), own);
  EXPECT_LT(keeper.bytes_in_use("accel.memory.1"), own + (1 << 20)) << "those of the other rank";
}

// What the keeper has counts against its quota.
TEST(NodeMemory, AnOutgrownPieceIsKeptNoMore) {
  MemfdKeeper keeper;
  NodeMemory memory(keeper);
  memory.open();
  std::ignore = memory.take({{0, 10}}, {});
  std::ignore = memory.take({{0, 1 << 20}}, {});
  memory.drop_older(Member::kFirst);

  EXPECT_THAT(keeper.files, UnorderedElementsAre(Key("accel.memory.index"), Key("accel.memory.2")));
}

TEST(NodeMemory, PiecesThatWereTakenInVainAreKeptNoMore) {
  MemfdKeeper keeper;
  NodeMemory memory(keeper);
  memory.open();
  std::ignore = memory.take({{0, 10}}, {});
  const std::string text = "content";
  SlotWriter writer(memory.slots(0, 10)->front());
  writer.append(std::as_bytes(std::span(text)));
  writer.complete(kFirst);
  for (std::uint64_t bytes = 1; bytes < 5; ++bytes) {
    NodeMemory next(keeper);
    next.open();
    std::ignore = next.take({{0, bytes << 20}}, kFirst);
  }

  EXPECT_THAT(keeper.files,
              UnorderedElementsAre(
                  Key("accel.memory.index"), Key("accel.memory.1"), Key("accel.memory.5")));
}

TEST(NodeMemory, GivesTheMemoryOfAnOlderPieceBack) {
  MemfdKeeper keeper;
  NodeMemory memory(keeper);
  memory.open();
  std::ignore = memory.take({{0, 1 << 20}}, {});
  const auto slots = *memory.slots(0, 1 << 20);
  std::memset(slots.front().data(), 1, slots.front().size());
  ASSERT_GT(keeper.bytes_in_use("accel.memory.1"), 1 << 20);
  const UniqueFd other_rank(::dup(keeper.files.at("accel.memory.1").get()));

  std::ignore = memory.take({{0, 2 << 20}}, {});
  memory.drop_older(Member::kFirst);

  struct stat status {};
  ASSERT_EQ(::fstat(other_rank.get(), &status), 0);
  EXPECT_EQ(status.st_blocks, 0);
}

}  // namespace
}  // namespace accel::checkpoint::node_memory_test
