#include "libaccel/engine/checkpoint/memory/memory_slot.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace accel::checkpoint::memory_slot_test {
namespace {

constexpr MemoryStamp kStamp{.serial = 7, .generation = 2, .step = 140, .world_size = 4, .rank = 3};

class MemorySlotTest : public ::testing::Test {
 protected:
  std::vector<std::byte> slot_ = std::vector<std::byte>(4096);
  std::string text_ = "what a rank has";

  void write() {
    SlotWriter writer(slot_);
    writer.append(std::as_bytes(std::span(text_)));
    writer.complete(kStamp);
  }
};

TEST_F(MemorySlotTest, GivesBackWhatWasWritten) {
  write();

  const auto filled = read_slot(slot_);

  ASSERT_TRUE(filled);
  EXPECT_EQ(filled->stamp, kStamp);
  EXPECT_TRUE(std::ranges::equal(filled->content, std::as_bytes(std::span(text_))));
  EXPECT_TRUE(is_intact(*filled));
}

TEST_F(MemorySlotTest, HoldsNothingAsLongAsItIsZero) {
  EXPECT_FALSE(read_slot(slot_));
}

TEST_F(MemorySlotTest, HoldsNothingWhileItIsWrittenAgain) {
  write();
  SlotWriter writer(slot_);
  EXPECT_FALSE(read_slot(slot_)) << "before the first byte";
  writer.append(std::as_bytes(std::span(text_)));
  EXPECT_FALSE(read_slot(slot_)) << "after the last";
}

TEST_F(MemorySlotTest, EveryBitThatChangesIsNoticed) {
  write();
  const std::size_t used = kSlotHeaderBytes + text_.size();
  int accepted = 0;
  for (std::size_t bit = 0; bit < used * 8; ++bit) {
    slot_[bit / 8] ^= std::byte{1} << (bit % 8);
    if (const auto filled = read_slot(slot_); filled && is_intact(*filled)) ++accepted;
    slot_[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  // The header's last bytes are not used.
  EXPECT_EQ(accepted, (static_cast<int>(kSlotHeaderBytes) - 72) * 8);
  EXPECT_TRUE(read_slot(slot_));
}

TEST_F(MemorySlotTest, SlotThatIsCutShortHoldsNothing) {
  write();
  for (std::size_t bytes = 0; bytes < kSlotHeaderBytes + text_.size(); ++bytes)
    EXPECT_FALSE(read_slot(std::span(slot_).first(bytes))) << bytes;
}

TEST_F(MemorySlotTest, MoreThanItHoldsIsRefused) {
  SlotWriter writer(slot_);
  const std::vector<std::byte> content(slot_.size() - kSlotHeaderBytes + 1);
  EXPECT_ANY_THROW(writer.append(content));
}

}  // namespace
}  // namespace accel::checkpoint::memory_slot_test
