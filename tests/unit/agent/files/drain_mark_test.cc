#include "agent/files/drain_mark.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/scratch_folder.h"

namespace accel::agent::drain_mark_test {
namespace {

using ::testing::HasSubstr;

class DrainMarkTest : public ::testing::Test {
 protected:
  test::ScratchFolder folder_;
  const DrainMark mark_{folder_.path().string()};
  const std::string file_ = folder_.file("drained");
};

TEST_F(DrainMarkTest, ANodeIsNotDrainedUntilSomebodySaysSo) {
  EXPECT_FALSE(mark_.read().has_value());
  EXPECT_TRUE(mark_.remove());
}

TEST_F(DrainMarkTest, StaysWithItsReasonUntilItIsRemoved) {
  ASSERT_TRUE(mark_.set("fan\x1b[2J"));
  const auto found = mark_.read();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->reason, "fan?[2J");
  EXPECT_EQ(found->complaint, "");
  EXPECT_EQ(std::filesystem::status(file_).permissions(), std::filesystem::perms(0600));

  ASSERT_TRUE(mark_.set(""));
  EXPECT_EQ(mark_.read()->reason, "");
  ASSERT_TRUE(mark_.remove());
  EXPECT_FALSE(mark_.read().has_value());
}

// In doubt the node does no work: an operator can say otherwise.
TEST_F(DrainMarkTest, OneThatIsDamagedIsSaidAndCounts) {
  ASSERT_TRUE(mark_.set("fan"));
  std::filesystem::resize_file(file_, 10);
  ASSERT_TRUE(mark_.read());
  EXPECT_THAT(mark_.read()->complaint, HasSubstr("drained"));

  std::ofstream(file_) << "anything else";
  ASSERT_TRUE(mark_.read());
  EXPECT_NE(mark_.read()->complaint, "");

  std::filesystem::remove(file_);
  std::filesystem::create_symlink("/dev/zero", file_);
  ASSERT_TRUE(mark_.read());
  EXPECT_NE(mark_.read()->complaint, "");
  EXPECT_TRUE(mark_.remove());
  EXPECT_FALSE(mark_.read());
}

TEST_F(DrainMarkTest, AFolderThatCannotBeWrittenIsAnError) {
  const DrainMark nowhere(folder_.file("missing"));
  EXPECT_FALSE(nowhere.set(""));
  EXPECT_FALSE(nowhere.remove());
}

}  // namespace
}  // namespace accel::agent::drain_mark_test
