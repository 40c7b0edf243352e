// One log file and its faults: full disk, deleted, read-only, rotated (docs/reference/faults.md 22, 24, 26).

#include "runtime/supervisor/logs/log_file.h"

#include <fstream>
#include <iterator>
#include <string>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "runtime/supervisor/logs/log_layout.h"
#include "tests/support/manual_clock.h"
#include "tests/support/scratch_folder.h"

namespace accel::supervisor::log_file_test {
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

TEST_F(LogFileTest, Fault23HoldsTheBytesAsTheyCame) {
  const std::filesystem::path path = folder_.path() / "attempt_0" / "3" / "stdout.log";
  LogFile file(path, {}, notices_, clock_.now());
  const std::string bytes("a\0b\xff\r\n", 6);

  send(bytes);
  EXPECT_EQ(take(file), LogFile::Taken::kSome);
  EXPECT_EQ(take(file), LogFile::Taken::kNothing);
  write_end_.reset();
  EXPECT_EQ(take(file), LogFile::Taken::kEnd);

  EXPECT_EQ(content_of(path), bytes);
  EXPECT_THAT(notices_->all(), IsEmpty());
}

TEST_F(LogFileTest, Fault22AFullDiskLosesBytesAndSaysSo) {
  LogFile file("/dev/full", {}, notices_, clock_.now());

  send("lost");
  EXPECT_EQ(take(file), LogFile::Taken::kSome);
  EXPECT_EQ(take(file), LogFile::Taken::kNothing);
  file.finish(6);

  EXPECT_EQ(file.taken(), 4U);
  EXPECT_THAT(notices_->all(),
              ElementsAre(HasSubstr("No space left on device"), EndsWith("10 bytes were dropped")));
}

TEST_F(LogFileTest, Fault22GoesOnWithAMarkerWhenItCanBeWrittenAgain) {
  // A folder in the place of the file, then out of the way: the only fault of a file system that
  // can be had without mounting one.
  const std::filesystem::path path = folder_.path() / "stderr.log";
  std::filesystem::create_directory(path);
  LogFile file(path, {}, notices_, clock_.now());
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

TEST_F(LogFileTest, Fault24ADeletedFileIsMadeAnew) {
  const std::filesystem::path path = folder_.path() / "attempt_0" / "0" / "stdout.log";
  LogFile file(path, {}, notices_, clock_.now());
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
  LogFile file(path, {}, notices_, clock_.now());
  send("half a line");
  take(file);

  file.finish(7);

  EXPECT_EQ(content_of(path), "half a line\n[accel: 7 bytes dropped]\n");
}

class LogFileRotationTest : public LogFileTest {
 protected:
  // What the stream held, put together from its files; the names say where each begins.
  std::string stream_from(std::uint64_t start) {
    std::string whole;
    for (std::uint64_t next = start;;) {
      const std::string part = content_of(rotated_name(path_, next));
      if (part.empty()) break;
      whole += part;
      next = start + whole.size();
    }
    return whole + content_of(path_);
  }
  std::size_t num_files() const {
    const std::filesystem::directory_iterator files(path_.parent_path());
    return static_cast<std::size_t>(std::distance(files, std::filesystem::directory_iterator()));
  }

  const std::filesystem::path path_ = folder_.path() / "0" / "stdout.log";
};

TEST_F(LogFileRotationTest, Fault26AFullFileIsRenamedByThePlaceOfItsFirstByte) {
  LogFile file(path_, {.bytes = 10}, notices_, clock_.now());
  send("0123456789ab");
  while (take(file) == LogFile::Taken::kSome) {
  }

  EXPECT_EQ(content_of(rotated_name(path_, 0)), "0123456789");
  EXPECT_EQ(content_of(path_), "ab");
  EXPECT_THAT(notices_->all(), IsEmpty());
}

TEST_F(LogFileRotationTest, Fault26NoByteIsLostOverManyFiles) {
  LogFile file(path_, {.bytes = 4096, .keep = 1000}, notices_, clock_.now());
  std::string all;
  for (int i = 0; i < 500; ++i) {
    const std::string portion(1 + static_cast<std::size_t>(i * 7919 % 9001),
                              static_cast<char>('a' + i % 26));
    send(portion);
    all += portion;
    while (take(file) == LogFile::Taken::kSome) {
    }
  }

  EXPECT_EQ(stream_from(0), all);
  EXPECT_EQ(num_files(), (all.size() + 4095) / 4096);
}

TEST_F(LogFileRotationTest, Fault26OnlyTheNewestFullFilesStay) {
  LogFile file(path_, {.bytes = 10, .keep = 2}, notices_, clock_.now());
  send("aaaaaaaaaabbbbbbbbbbccccccccccdddddddddde");
  while (take(file) == LogFile::Taken::kSome) {
  }

  EXPECT_EQ(stream_from(20), "ccccccccccdddddddddde");
  EXPECT_EQ(num_files(), 3U);
}

TEST_F(LogFileRotationTest, Fault26AFolderThatTakesNoNewFileLetsTheFileGrow) {
  LogFile file(path_, {.bytes = 10}, notices_, clock_.now());
  std::filesystem::create_directory(path_.string() + ".next");  // in the way of the next file
  send("0123456789");
  take(file);
  send("abc");
  take(file);
  EXPECT_EQ(content_of(path_), "0123456789abc");

  std::filesystem::remove(path_.string() + ".next");
  send("def");
  take(file);
  EXPECT_EQ(content_of(path_), "0123456789abcdef") << "tried again before a second had passed";
  clock_.advance(1s);
  send("ghi");
  take(file);

  EXPECT_EQ(stream_from(0), "0123456789abcdefghi");
  EXPECT_EQ(content_of(path_), "ghi");
  EXPECT_THAT(notices_->all(), ElementsAre(HasSubstr("cannot be renamed: Is a directory")));
}

TEST_F(LogFileRotationTest, Fault26AFullFileWhoseNameIsTakenKeepsItsOwn) {
  LogFile file(path_, {.bytes = 10}, notices_, clock_.now());
  std::filesystem::create_directory(rotated_name(path_, 0));
  send("0123456789");
  take(file);
  send("abc");
  take(file);

  EXPECT_EQ(content_of(path_), "0123456789abc");
  EXPECT_EQ(num_files(), 2U);
  EXPECT_THAT(notices_->all(), ElementsAre(HasSubstr("cannot be renamed")));
}

TEST_F(LogFileRotationTest, Fault24AFullFileThatWasDeletedIsMadeAnew) {
  LogFile file(path_, {.bytes = 10}, notices_, clock_.now());
  send("0123456789");
  take(file);
  std::filesystem::remove_all(path_.parent_path());
  send("abc");
  take(file);

  EXPECT_EQ(content_of(path_), "abc");
  EXPECT_EQ(num_files(), 1U);
  EXPECT_THAT(notices_->all(), ElementsAre(HasSubstr("was deleted")));
}

TEST_F(LogFileRotationTest, FilesOfAJobBeforeAreRemoved) {
  std::filesystem::create_directories(path_.parent_path());
  for (const char* name : {"stdout.log", "stdout.log.0", "stdout.log.99", "stdout.log.old"})
    std::ofstream(path_.parent_path() / name) << "old";

  const LogFile file(path_, {.bytes = 10}, notices_, clock_.now());

  EXPECT_EQ(content_of(path_), "");
  EXPECT_EQ(num_files(), 2U) << "what is not one of its names stays";
}

TEST_F(LogFileTest, ALinkInItsPlaceIsNotFollowed) {
  const std::filesystem::path target = folder_.path() / "precious";
  std::ofstream(target) << "keep";
  std::filesystem::create_symlink(target, folder_.path() / "stdout.log");

  LogFile file(folder_.path() / "stdout.log", {}, notices_, clock_.now());
  send("x");
  take(file);

  EXPECT_EQ(content_of(target), "keep");
  EXPECT_THAT(notices_->all(), ElementsAre(HasSubstr("symbolic links")));
}

}  // namespace
}  // namespace accel::supervisor::log_file_test
