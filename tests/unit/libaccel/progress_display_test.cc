// What a progress bar shows, and when; with a clock that is turned by hand.

#include "libaccel/api/console/progress_display.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::progress_display_test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class HandClock : public Clock {
 public:
  TimePoint now() const noexcept override { return now_; }
  void advance(Duration time) { now_ += time; }

 private:
  TimePoint now_{};
};

class ProgressDisplayTest : public ::testing::Test {
 protected:
  ProgressTerminal terminal(bool is_terminal, int width = 0) {
    return {[this](std::string_view text) { written_.emplace_back(text); },
            [width] { return width; },
            is_terminal};
  }

  HandClock clock_;
  std::vector<std::string> written_;
};

TEST(RenderProgress, ShowsBarTimesAndRate) {
  const std::string line = render_progress(
      {.desc = "epoch 3", .postfix = "loss=0.12", .done = 45, .total = 100, .elapsed = 1.5s}, 0);

  EXPECT_EQ(line, "epoch 3:  45%|####5     | 45/100 [00:01<00:01, 30.00it/s, loss=0.12]");
}

TEST(RenderProgress, WithoutTotalShowsCountsOnly) {
  EXPECT_EQ(render_progress({.done = 45, .elapsed = 90s}, 80), "45it [01:30, 2.00s/it]");
  EXPECT_EQ(render_progress({.unit = "batch", .done = 0}, 80), "0batch [00:00, ?batch/s]");
}

TEST(RenderProgress, FitsTheTerminal) {
  const ProgressLine line{.desc = "a long description", .done = 5, .total = 10, .elapsed = 5s};

  EXPECT_EQ(render_progress(line, 80).size(), 80u);
  EXPECT_LE(render_progress(line, 30).size(), 30u);
  EXPECT_THAT(render_progress(line, 80), HasSubstr("|###"));
}

TEST(RenderProgress, IsFullAtTheEndAndBeyond) {
  EXPECT_THAT(render_progress({.done = 10, .total = 10, .elapsed = 1s}, 0),
              StartsWith("100%|##########| 10/10"));
  EXPECT_THAT(render_progress({.done = 12, .total = 10, .elapsed = 1s}, 0),
              StartsWith("100%|##########| 12/10"));
}

TEST(ClockText, ShowsHoursOnlyWhenThereAreSome) {
  EXPECT_EQ(clock_text(65s), "01:05");
  EXPECT_EQ(clock_text(3725s), "1:02:05");
}

TEST_F(ProgressDisplayTest, PaintsATerminalNoMoreOftenThanTheInterval) {
  ProgressDisplay display({.total = 100, .min_interval = 100ms}, clock_, terminal(true));

  for (int i = 0; i < 30; ++i) {
    clock_.advance(10ms);
    display.update(1);
  }

  ASSERT_EQ(written_.size(), 4u) << "once at the start, then at 100, 200 and 300 ms";
  EXPECT_THAT(written_[1], HasSubstr(" 10/100 "));
  EXPECT_THAT(written_[3], HasSubstr(" 30/100 "));
  EXPECT_THAT(written_[3], StartsWith("\r"));
}

TEST_F(ProgressDisplayTest, WritesPlainLinesElsewhere) {
  ProgressDisplay display({.total = 4, .plain_interval = 10s}, clock_, terminal(false));

  for (int i = 0; i < 4; ++i) {
    clock_.advance(6s);
    display.update(1);
  }
  display.close();
  display.close();

  EXPECT_THAT(written_,
              ElementsAre(" 50%|#####     | 2/4 [00:12<00:12, 6.00s/it]\n",
                          "100%|##########| 4/4 [00:24<00:00, 6.00s/it]\n"));
}

TEST_F(ProgressDisplayTest, IsWipedWhenItShallNotStay) {
  ProgressDisplay display({.total = 4, .leave = false}, clock_, terminal(true));

  display.close();
  display.update(1);

  EXPECT_EQ(written_.back(), "\r\x1b[K");
}

TEST_F(ProgressDisplayTest, ShowsThePostfixFromTheNextPaintOn) {
  ProgressDisplay display({.total = 4}, clock_, terminal(true));

  display.set_postfix("loss=1");
  display.close();

  ASSERT_EQ(written_.size(), 3u);
  EXPECT_THAT(written_[1], HasSubstr(", loss=1]"));
}

}  // namespace
}  // namespace accel::progress_display_test
