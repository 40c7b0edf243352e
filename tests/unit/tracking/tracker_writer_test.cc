#include "libaccel/tracking/tracker_writer.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <future>
#include <iterator>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <accel/tracking.h>

#include "libaccel/tracking/line_files.h"
#include "tests/support/scratch_folder.h"

namespace accel::tracking {
namespace {

using namespace std::chrono_literals;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Takes what it is given when the test lets it.
class HeldSink final : public TrackSink {
 public:
  void write(const TrackEntry& entry) override {
    const std::lock_guard lock(mutex_);
    steps_.push_back(*entry.step);
    held_ += 100;
  }
  Backlog drain() override {
    const std::lock_guard lock(mutex_);
    if (is_full_) return {.bytes = held_, .error = held_ > 0 ? ENOSPC : 0, .path = "/full"};
    held_ = 0;
    return {};
  }
  void set_full(bool is_full) {
    const std::lock_guard lock(mutex_);
    is_full_ = is_full;
  }
  [[nodiscard]] std::vector<std::int64_t> steps() const {
    const std::lock_guard lock(mutex_);
    return steps_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::int64_t> steps_;
  std::size_t held_ = 0;
  bool is_full_ = false;
};

TimePoint soon() {
  return std::chrono::steady_clock::now() + 60s;
}

TimePoint already() {
  return std::chrono::steady_clock::now();
}

TrackEntry step_entry(std::int64_t step) {
  return {.values = {{"loss", 0.5}}, .step = step};
}

class TrackerWriterTest : public ::testing::Test {
 protected:
  TrackerWriterTest() {
    writer_.set_notice([this](const std::string& text) {
      const std::lock_guard lock(mutex_);
      notices_.push_back(text);
    });
  }
  ~TrackerWriterTest() override { writer_.stop(); }
  std::vector<std::string> notices() {
    const std::lock_guard lock(mutex_);
    return notices_;
  }

  TrackerWriter writer_{4096};
  std::shared_ptr<HeldSink> sink_ = std::make_shared<HeldSink>();

 private:
  std::mutex mutex_;
  std::vector<std::string> notices_;
};

TEST_F(TrackerWriterTest, WritesEntriesInTheirOrder) {
  for (int step = 0; step < 3; ++step) writer_.hand_over(sink_, step_entry(step));

  EXPECT_TRUE(writer_.flush(soon()));

  EXPECT_THAT(sink_->steps(), ElementsAre(0, 1, 2));
  EXPECT_THAT(notices(), IsEmpty());
}

TEST_F(TrackerWriterTest, FlushesAtOnceWhenNothingWasLogged) {
  EXPECT_TRUE(writer_.flush(already()));
}

TEST_F(TrackerWriterTest, KeepsWhatAFullDiskRefusesAndSaysSoOnce) {
  sink_->set_full(true);
  writer_.hand_over(sink_, step_entry(1));
  writer_.hand_over(sink_, step_entry(2));
  EXPECT_FALSE(writer_.flush(std::chrono::steady_clock::now() + 50ms));
  EXPECT_THAT(notices(), ElementsAre(HasSubstr("cannot write /full: No space left on device")));

  sink_->set_full(false);
  EXPECT_TRUE(writer_.flush(soon()));

  EXPECT_THAT(notices(), Contains(HasSubstr("written again; lost since the start: 0")));
  EXPECT_THAT(sink_->steps(), ElementsAre(1, 2));
}

TEST_F(TrackerWriterTest, DropsAndCountsWhatItsMemoryCannotHold) {
  sink_->set_full(true);
  for (int step = 0; step < 1000; ++step) writer_.hand_over(sink_, step_entry(step));
  const std::uint64_t dropped = writer_.dropped();
  EXPECT_GT(dropped, 0U);

  sink_->set_full(false);
  EXPECT_TRUE(writer_.flush(soon()));

  EXPECT_THAT(sink_->steps(), SizeIs(1000 - dropped));
  writer_.hand_over(sink_, step_entry(1000));
  EXPECT_TRUE(writer_.flush(soon()));
  EXPECT_THAT(sink_->steps(), Contains(1000));
}

// A file that may not grow refuses as a full disk does, in the middle of a line.
TEST_F(TrackerWriterTest, WritesEachByteOnceWhenAFileRefusesInTheMiddleOfALine) {
  const test::ScratchFolder folder;
  const auto path = folder.path() / "log.jsonl";
  const auto lines = std::make_shared<JsonLines>(path);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 60;
  ASSERT_NE(std::signal(SIGXFSZ, SIG_IGN), SIG_ERR);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);

  for (int step = 0; step < 5; ++step) writer_.hand_over(lines, step_entry(step));
  const bool was_written = writer_.flush(std::chrono::steady_clock::now() + 50ms);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_FALSE(was_written);
  EXPECT_TRUE(writer_.flush(soon()));

  std::ifstream file(path);
  std::vector<std::string> found;
  for (std::string line; std::getline(file, line);) found.push_back(line.substr(0, 9));
  EXPECT_THAT(
      found,
      ElementsAre("{\"step\":0", "{\"step\":1", "{\"step\":2", "{\"step\":3", "{\"step\":4"));
}

}  // namespace
}  // namespace accel::tracking
