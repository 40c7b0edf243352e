// The last event of a job on the disk (faults 27, 31 and 67 of docs/reference/faults.md).

#include "runtime/supervisor/owner/last_word.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/supervisor/kernel/sealed_file.h"
#include "tests/support/scratch_folder.h"

namespace accel::supervisor::last_word_test {
namespace {

using ::testing::HasSubstr;

class LastWordTest : public ::testing::Test {
 protected:
  LastWordTest() { ::chmod(folder_.path().c_str(), 0700); }

  [[nodiscard]] Result<std::optional<HostEvent>> read(uid_t owner = ::geteuid()) const {
    return read_last_word(folder_.path(), "j", owner);
  }

  test::ScratchFolder folder_;
};

TEST_F(LastWordTest, Fault27AnOutcomeComesBackAndGoes) {
  JobOutcome outcome;
  outcome.exit_code = 7;
  outcome.reason = "failed";
  ASSERT_TRUE(write_last_word(folder_.path(), "j", outcome));

  const auto word = read();

  ASSERT_TRUE(word && *word);
  EXPECT_EQ(std::get<JobOutcome>(**word).exit_code, 7);
  remove_last_word(folder_.path(), "j");
  ASSERT_TRUE(read());
  EXPECT_FALSE(*read());
}

TEST_F(LastWordTest, Fault27ARefusalComesBack) {
  const HostEvent refusal = Refused{Error(ErrorCode::kPortInUse, "taken", "try another")};
  ASSERT_TRUE(write_last_word(folder_.path(), "j", refusal));
  EXPECT_EQ(std::get<Refused>(**read()).error.code(), ErrorCode::kPortInUse);
}

TEST_F(LastWordTest, WithoutOneThereIsNone) {
  ASSERT_TRUE(read());
  EXPECT_FALSE(*read());
  const auto nowhere = read_last_word(folder_.file("none"), "j", ::geteuid());
  ASSERT_TRUE(nowhere);
  EXPECT_FALSE(*nowhere);
}

TEST_F(LastWordTest, Fault31WhatIsNoEndIsRefused) {
  std::ofstream(folder_.file("j.end")) << "accel-shim-end 1 0000000000000000\n{}\n";
  EXPECT_THAT(read().error().message(), HasSubstr("its checksum does not match"));
  const Seal own = {.magic = "accel-shim-end ", .version = 1, .kind = "x"};
  std::ofstream(folder_.file("j.end")) << seal(own, encode(HostEvent(Notice{"hello"})));
  EXPECT_THAT(read().error().message(), HasSubstr("does not say how the job ended"));
}

TEST_F(LastWordTest, Fault67LinksPipesAndOthersFoldersAreRefused) {
  const std::string other = folder_.write("other", "x");
  ASSERT_EQ(::symlink(other.c_str(), folder_.file("j.end").c_str()), 0);
  EXPECT_FALSE(read());
  ASSERT_EQ(::unlink(folder_.file("j.end").c_str()), 0);
  ASSERT_EQ(::mkfifo(folder_.file("j.end").c_str(), 0600), 0);
  EXPECT_THAT(read().error().message(), HasSubstr("no plain file"));
  EXPECT_THAT(read(::geteuid() + 1).error().message(), HasSubstr("belongs to uid"));
}

}  // namespace
}  // namespace accel::supervisor::last_word_test
