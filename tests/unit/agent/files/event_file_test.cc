#include "agent/files/event_file.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/scratch_folder.h"

namespace accel::agent::event_file_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A real disk that has room for so many bytes more, and writes what fits.
class SmallDisk final : public EventDisk {
 public:
  std::atomic<std::size_t> room{0};
  std::atomic<int> num_failed{0};

  Result<UniqueFd> open(const std::string& path) override { return real_event_disk().open(path); }
  std::size_t size_of(int fd) override { return real_event_disk().size_of(fd); }
  Result<std::size_t> write(int fd, std::string_view bytes) override {
    const std::size_t fits = std::min(room.load(), bytes.size());
    if (fits == 0) {
      ++num_failed;
      num_failed.notify_all();
      return Error(ErrorCode::kDiskFull, "No space left on device");
    }
    room -= fits;
    return real_event_disk().write(fd, bytes.substr(0, fits));
  }
  Result<void> truncate(int fd, std::size_t bytes) override {
    return real_event_disk().truncate(fd, bytes);
  }
  Result<void> rename(const std::string& from, const std::string& to) override {
    return real_event_disk().rename(from, to);
  }
};

class EventFileTest : public ::testing::Test {
 protected:
  std::unique_ptr<EventFile> open(EventFile::Options options = {}) {
    options.path = path_;
    auto opened = EventFile::open(std::move(options));
    EXPECT_TRUE(opened) << opened.error().what();
    return *std::move(opened);
  }
  static std::vector<std::string> lines(const std::string& path) {
    std::ifstream file(path);
    std::vector<std::string> all;
    for (std::string line; std::getline(file, line);) all.push_back(line);
    return all;
  }

  test::ScratchFolder folder_;
  const std::string path_ = folder_.file("events.jsonl");
};

TEST_F(EventFileTest, KeepsWhatWasThereAndIsForItsOwnerAlone) {
  std::ofstream(path_) << "before\n";
  std::filesystem::permissions(path_, std::filesystem::perms(0644));
  auto file = open();
  file->add("one");
  file->add("two");
  file.reset();

  EXPECT_THAT(lines(path_), ElementsAre("before", "one", "two"));
  EXPECT_EQ(std::filesystem::status(path_).permissions(), std::filesystem::perms(0600));
}

TEST_F(EventFileTest, KeepsTwoFiles) {
  auto file = open({.most_bytes = 12});
  for (const char* line : {"one", "two", "three", "four", "five", "six"}) file->add(line);
  file.reset();

  EXPECT_THAT(lines(path_ + ".1"), ElementsAre("three", "four"));
  EXPECT_THAT(lines(path_), ElementsAre("five", "six"));
  EXPECT_FALSE(std::filesystem::exists(path_ + ".2"));
}

TEST_F(EventFileTest, Fault59AFullDiskCostsEventsAndNothingElse) {
  SmallDisk disk;
  disk.room = 6;
  std::string trouble;
  auto file =
      open({.on_trouble = [&](const std::string& text) { trouble += text + '\n'; }, .disk = &disk});
  file->add("one");    // fits
  file->add("two");    // half of it does
  file->add("three");  // does not
  while (disk.num_failed < 2) disk.num_failed.wait(disk.num_failed);
  disk.room = 1'000;
  file->add("four");
  file->add("five");
  file.reset();

  EXPECT_THAT(lines(path_), ElementsAre("one", R"({"event":"dropped","count":2})", "four", "five"));
  EXPECT_EQ(trouble, "events cannot be written to " + path_ + ": No space left on device\n");
}

TEST_F(EventFileTest, AQueueThatIsFullDropsWhatComes) {
  SmallDisk disk;
  disk.room = 1'000;
  auto file = open({.most_queued = 0, .disk = &disk});
  file->add("one");

  EXPECT_EQ(file->num_dropped(), 1U);
}

TEST_F(EventFileTest, ALinkIsNotFollowed) {
  std::filesystem::create_symlink("/dev/null", path_);
  const auto opened = EventFile::open({.path = path_});
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error().message(), HasSubstr(path_));
}

}  // namespace
}  // namespace accel::agent::event_file_test
