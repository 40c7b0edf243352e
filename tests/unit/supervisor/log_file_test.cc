// One log file and its faults: full, deleted, read-only (docs/faults.md 22, 24).

#include "runtime/supervisor/log_file.h"

#include <fstream>
#include <iterator>
#include <string>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/support/manual_clock.h"
#include "tests/support/scratch_folder.h"

namespace accel::supervisor {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class LogFileTest : public ::testing::Test {
 protected:
  LogFileTest() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    read_end_.reset(ends[0]);
    write_end_.reset(ends[1]);
  }

  void send(std::string_view bytes) {
    ASSERT_EQ(::write(write_end_.get(), bytes.data(), bytes.size()),
              static_cast<ssize_t>(bytes.size()));
  }
  LogFile::Taken take(LogFile& file) { return file.take_from(read_end_.get(), clock_.now()); }

  test::ScratchFolder folder_;
  test::ManualClock clock_;
  std::shared_ptr<NoticeBoard> notices_ = std::make_shared<NoticeBoard>(nullptr);
  UniqueFd read_end_;
  UniqueFd write_end_;
};

TEST_F(LogFileTest, HoldsTheBytesAsTheyCame) {
  const std::filesystem::path path = folder_.path() / "attempt_0" / "3" / "stdout.log";
  LogFile file(path, notices_, clock_.now());
  const std::string bytes("a\0b\xff\r\n", 6);

  send(bytes);
  EXPECT_EQ(take(file), LogFile::Taken::kSome);
  EXPECT_EQ(take(file), LogFile::Taken::kNothing);
  write_end_.reset();
  EXPECT_EQ(take(file), LogFile::Taken::kEnd);

  EXPECT_EQ(content_of(path), bytes);
  EXPECT_THAT(notices_->all(), IsEmpty());
}

TEST_F(LogFileTest, AFullDiskLosesBytesAndSaysSo) {
  LogFile file("/dev/full", notices_, clock_.now());

  send("lost");
  EXPECT_EQ(take(file), LogFile::Taken::kSome);
  EXPECT_EQ(take(file), LogFile::Taken::kNothing);
  file.finish(6);

  EXPECT_EQ(file.taken(), 4U);
  EXPECT_THAT(notices_->all(),
              ElementsAre(HasSubstr("No space left on device"), EndsWith("10 bytes were dropped")));
}

TEST_F(LogFileTest, GoesOnWithAMarkerWhenItCanBeWrittenAgain) {
  // A folder in the place of the file, then out of the way: the only fault of a file system that
  // can be had without mounting one.
  const std::filesystem::path path = folder_.path() / "stderr.log";
  std::filesystem::create_directory(path);
  LogFile file(path, notices_, clock_.now());
  send("12345");
  take(file);
  std::filesystem::remove(path);

  send("678");
  take(file);
  EXPECT_FALSE(std::filesystem::exists(path)) << "tried again before a second had passed";
  clock_.advance(1s);
  send("after\n");
  take(file);

  EXPECT_EQ(content_of(path), "[accel: 8 bytes dropped]\nafter\n");
  EXPECT_THAT(notices_->all(),
              ElementsAre(HasSubstr("Is a directory"), EndsWith("8 bytes were dropped")));
}

TEST_F(LogFileTest, ADeletedFileIsMadeAnew) {
  const std::filesystem::path path = folder_.path() / "attempt_0" / "0" / "stdout.log";
  LogFile file(path, notices_, clock_.now());
  send("before\n");
  take(file);
  std::filesystem::remove_all(folder_.path() / "attempt_0");

  clock_.advance(1s);
  send("after\n");
  take(file);

  EXPECT_EQ(content_of(path), "after\n");
  EXPECT_THAT(notices_->all(), ElementsAre(HasSubstr("was deleted")));
}

TEST_F(LogFileTest, BytesThatNeverReachedThePipeAreMarkedAtTheEnd) {
  const std::filesystem::path path = folder_.path() / "stdout.log";
  LogFile file(path, notices_, clock_.now());
  send("half a line");
  take(file);

  file.finish(7);

  EXPECT_EQ(content_of(path), "half a line\n[accel: 7 bytes dropped]\n");
}

TEST_F(LogFileTest, ALinkInItsPlaceIsNotFollowed) {
  const std::filesystem::path target = folder_.path() / "precious";
  std::ofstream(target) << "keep";
  std::filesystem::create_symlink(target, folder_.path() / "stdout.log");

  LogFile file(folder_.path() / "stdout.log", notices_, clock_.now());
  send("x");
  take(file);

  EXPECT_EQ(content_of(target), "keep");
  EXPECT_THAT(notices_->all(), ElementsAre(HasSubstr("symbolic links")));
}

}  // namespace
}  // namespace accel::supervisor
