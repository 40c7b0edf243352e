// Sinks that lag, and disks that hang or are full (docs/reference/faults.md 21, 22, 24).

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <regex>
#include <sstream>

#include <sched.h>
#include <sys/mount.h>

#include "runtime/supervisor/logs/log_router.h"
#include "tests/support/log_router_fixture.h"

namespace accel::supervisor::log_router_disk_test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// What is shown under the policy `sample`: numbers of 100 digits, one a line, and the markers between them.
struct Shown {
  std::vector<int> numbers;
  std::uint64_t markers = 0;
  std::uint64_t marked = 0;  // bytes, as they say
  std::uint64_t bytes = 0;   // of all other lines
};
Shown read_shown(const std::string& text) {
  Shown shown;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::uint64_t dropped = 0;
    if (std::sscanf(line.c_str(), "[accel: %lu bytes dropped]", &dropped) == 1) {
      ++shown.markers;
      shown.marked += dropped;
    } else {
      if (line.size() == 100) shown.numbers.push_back(std::atoi(line.c_str()));  // not torn
      shown.bytes += line.size() + 1;
    }
  }
  return shown;
}

// Fault 21: what is not shown is counted to the byte, and lines from all over the lagging time stay.
TEST_F(LogRouterTest, Fault21UnderTheSamplePolicyAStoppedConsoleHoldsNobodyUpAndLinesStay) {
  options_.log.overflow = Overflow::kSample;
  options_.stall_limit = kGenerous;
  start(1);
  std::uint64_t written = 0;
  {
    const WorkerStdio worker = open(0);
    const auto say_number = [&](int number) {
      char line[128];
      std::snprintf(line, sizeof line, "%0100d\n", number);
      say(worker.out, line);
      written += 101;
    };
    int number = 0;
    // The worker gets through although nobody reads, and the lag is told.
    while (number < 100'000) say_number(number++);
    EXPECT_TRUE(wait_for([this] { return !router_->notices().empty(); }));
    // Now somebody reads: lines get through again while the window is open, and after it everything.
    out_.read_along();
    EXPECT_TRUE(wait_for([&] {
      say_number(number++);
      return out_.so_far().find("bytes dropped]") != std::string::npos;
    }));
  }
  drain(0);
  EXPECT_TRUE(close());

  const Shown shown = read_shown(out_.all());
  EXPECT_EQ(shown.bytes + shown.marked, written);
  EXPECT_TRUE(std::is_sorted(shown.numbers.begin(), shown.numbers.end()));
  EXPECT_THAT(router_->notices(),
              Contains(HasSubstr("does not keep up; only some lines are kept")));
}

// A file system that answers nobody while the gate is closed.
class Gate {
 public:
  void close() { set(false); }
  void open() { set(true); }
  void pass() {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [this] { return is_open_; });
  }

 private:
  void set(bool is_open) {
    const std::lock_guard lock(mutex_);
    is_open_ = is_open;
    opened_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable opened_;
  bool is_open_ = true;
};

class HangingFilesTest : public LogRouterTest {
 protected:
  HangingFilesTest() {
    options_.log.dir = folder_.path();
    options_.before_file_portion = [this] { gate_.pass(); };
    worker_.redirect = Streams::kAll;
  }
  ~HangingFilesTest() override { gate_.open(); }

  Gate gate_;
};

// Fault 21: the worker does not depend on the disk, and what the file lacks is marked to the byte.
TEST_F(HangingFilesTest, Fault21UnderTheDropPolicyADiskThatHangsHoldsNobodyUp) {
  options_.log.overflow = Overflow::kDrop;
  options_.stall_limit = kGenerous;
  start(1);
  const std::string bytes = random_bytes(4'000'000, 8);
  {
    const WorkerStdio worker = open(0);
    gate_.close();
    say(worker.out, bytes);  // returns although nothing is written
    EXPECT_TRUE(wait_for([this] { return !router_->notices().empty(); }));
    EXPECT_THAT(router_->notices(), Contains(StartsWith("log files: does not keep up")));
  }
  drain(0);
  gate_.open();
  EXPECT_TRUE(close());

  const std::string text = content_of(log_of(0, Stream::kOut));
  std::smatch marker;
  const std::regex form("\\n?\\[accel: ([0-9]+) bytes dropped\\]\\n$");
  const std::string end = text.substr(text.size() - 50);
  ASSERT_TRUE(std::regex_search(end, marker, form)) << end;
  const std::size_t kept = text.size() - static_cast<std::size_t>(marker[0].length());
  EXPECT_EQ(kept + std::stoull(marker[1]), bytes.size());
  EXPECT_EQ(text.substr(0, kept), bytes.substr(0, kept));
  EXPECT_EQ(router_->tail(0).out, bytes.substr(bytes.size() - 64 * 1024));
}

// Fault 21: whole lines from the time when the file lagged stay, each with the bytes before it counted.
TEST_F(HangingFilesTest, Fault21UnderTheSamplePolicyAFileKeepsLinesAndMarks) {
  options_.log.overflow = Overflow::kSample;
  options_.stall_limit = kGenerous;
  start(1);
  std::uint64_t written = 0;
  {
    const WorkerStdio worker = open(0);
    int number = 0;
    const auto say_number = [&] {
      char line[128];
      std::snprintf(line, sizeof line, "%0100d\n", number++);
      say(worker.out, line);
      written += 101;
    };
    gate_.close();
    while (number < 20'000) say_number();
    EXPECT_TRUE(wait_for([this] { return !router_->notices().empty(); }));
    gate_.open();
    // Until lines get through again.
    EXPECT_TRUE(wait_for([&] {
      say_number();
      return content_of(log_of(0, Stream::kOut)).find("bytes dropped]") != std::string::npos;
    }));
  }
  drain(0);
  EXPECT_TRUE(close());

  const Shown shown = read_shown(content_of(log_of(0, Stream::kOut)));
  EXPECT_TRUE(std::is_sorted(shown.numbers.begin(), shown.numbers.end()));
  EXPECT_GT(shown.marked, 0U);
  // A line that is torn by a marker ends with a newline that is not its own.
  EXPECT_GE(shown.bytes + shown.marked, written);
  EXPECT_LE(shown.bytes + shown.marked, written + shown.markers);
}

// Fault 24: whatever the policy, a file system that hangs holds the workers up for the limit alone.
TEST_F(HangingFilesTest, Fault24AFileSystemThatHangsLosesItsSurplusAndGoesOnWithAMarker) {
  options_.stall_limit = 50ms;
  start(1);
  const std::string bytes = random_bytes(4'000'000, 9);
  {
    const WorkerStdio worker = open(0);
    gate_.close();
    say(worker.out, bytes);
    EXPECT_THAT(router_->notices(), Contains(StartsWith("log files: took nothing for 50 ms")));
    gate_.open();
    EXPECT_TRUE(wait_for([&] {
      say(worker.out, "more\n");
      return content_of(log_of(0, Stream::kOut)).find("bytes dropped]\n") != std::string::npos;
    }));
  }
  drain(0);
  EXPECT_TRUE(close());
}

// A file system of 256 KiB of the test's own, seen by this thread and those that it starts.
class SmallDiskTest : public LogRouterTest {
 protected:
  void SetUp() override {
    disk_ = folder_.path() / "disk";
    std::filesystem::create_directory(disk_);
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", disk_.c_str(), "tmpfs", 0, "size=256k") != 0) {
      GTEST_SKIP() << "nothing can be mounted here: " << std::strerror(errno);
    }
    is_mounted_ = true;
    options_.log.dir = disk_;
    worker_.redirect = Streams::kAll;
  }
  void TearDown() override {
    if (router_) router_->close(kGenerous);
    router_.reset();
    if (is_mounted_) ::umount2(disk_.c_str(), MNT_DETACH);
  }

  std::filesystem::path disk_file() const {
    return LogLayout(disk_, "job").stream_file(0, 0, Stream::kOut);
  }

  std::filesystem::path disk_;
  bool is_mounted_ = false;
};

TEST_F(SmallDiskTest, Fault22TheWorkerGoesOnOverAFullDiskAndItsFileGoesOnWhenThereIsSpace) {
  start(1);
  std::ofstream(disk_ / "other") << std::string(128 * 1024, 'x');
  const std::string bytes = random_bytes(2'000'000, 10);
  {
    const WorkerStdio worker = open(0);
    say(worker.out, bytes);
    EXPECT_TRUE(wait_for([this] { return !router_->notices().empty(); }));
    EXPECT_THAT(router_->notices(), Contains(HasSubstr("No space left on device")));

    std::filesystem::remove(disk_ / "other");
    EXPECT_TRUE(wait_for([&] {
      say(worker.out, "more\n");
      return content_of(disk_file()).find("bytes dropped]\n") != std::string::npos;
    }));
  }
  drain(0);
  EXPECT_TRUE(close());

  const std::string text = content_of(disk_file());
  const std::size_t marker = text.find("[accel: ");
  const std::size_t kept = marker - (text[marker - 1] == '\n' ? 1 : 0);
  EXPECT_GT(kept, 64U * 1024);
  EXPECT_EQ(text.substr(0, kept), bytes.substr(0, kept));
  EXPECT_TRUE(
      std::regex_search(text.substr(marker), std::regex("^\\[accel: [0-9]+ bytes dropped\\]\n")));
  EXPECT_TRUE(text.ends_with("more\n"));
}

TEST_F(SmallDiskTest, Fault22AFullDiskDoesNotRotateIntoNothing) {
  options_.log.rotation = {.bytes = 64 * 1024, .keep = 1};
  start(1);
  const std::string bytes = random_bytes(2'000'000, 11);
  say(open(0).out, bytes);
  drain(0);
  EXPECT_TRUE(close());

  // Two full files and the newest fit: nothing is lost but what was rotated away.
  const std::string newest = content_of(disk_file());
  const std::size_t start = bytes.size() - newest.size() - 64 * 1024;
  EXPECT_EQ(content_of(rotated_name(disk_file().string(), start)) + newest, bytes.substr(start));
  EXPECT_THAT(router_->notices(), ::testing::IsEmpty());
}

}  // namespace
}  // namespace accel::supervisor::log_router_disk_test
