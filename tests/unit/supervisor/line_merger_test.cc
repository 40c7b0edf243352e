#include "runtime/supervisor/lines/line_merger.h"

#include <string>

#include <gtest/gtest.h>

#include "tests/support/manual_clock.h"

namespace accel::supervisor::line_merger_test {
namespace {

using namespace std::chrono_literals;

class LineMergerTest : public ::testing::Test {
 protected:
  static constexpr int kRank0 = 0;
  static constexpr int kRank1 = 1;

  LineMergerTest() {
    merger_.add(kRank0, "", 100ms);
    merger_.add(kRank1, "", 100ms);
  }

  void feed(int stream, std::string_view bytes) { merger_.feed(stream, bytes, shown_); }
  void feed_and_pause(int stream, std::string_view bytes) {
    feed(stream, bytes);
    merger_.pause(stream, clock_.now());
  }
  void wait(Duration time) {
    clock_.advance(time);
    merger_.flush_waiting(clock_.now(), shown_);
  }

  test::ManualClock clock_;
  LineMerger merger_;
  std::string shown_;
};

TEST_F(LineMergerTest, ALineInPiecesComesOutWhole) {
  feed(kRank0, "loss ");
  feed(kRank1, "a\n");
  feed(kRank0, "0.5\nst");
  feed(kRank1, "b\n");
  feed(kRank0, "ep\n");

  EXPECT_EQ(shown_, "a\nloss 0.5\nb\nstep\n");
}

TEST_F(LineMergerTest, APromptIsShownAfterItsPatience) {
  feed_and_pause(kRank0, "name? ");
  wait(99ms);
  EXPECT_EQ(shown_, "");

  wait(1ms);

  EXPECT_EQ(shown_, "name? ");
}

TEST_F(LineMergerTest, ALineThatNobodyTookTheRestOfIsNotShown) {
  feed(kRank0, "half a li");

  wait(1h);

  EXPECT_EQ(shown_, "");
  EXPECT_FALSE(merger_.next_deadline());
}

TEST_F(LineMergerTest, TheDeadlineIsThatOfTheOldestPause) {
  feed_and_pause(kRank0, "a");
  clock_.advance(10ms);
  feed_and_pause(kRank0, "b");
  const TimePoint due = clock_.now() + 100ms;
  clock_.advance(10ms);
  feed_and_pause(kRank1, "c");
  merger_.pause(kRank0, clock_.now());

  EXPECT_EQ(merger_.next_deadline(), due);
}

TEST_F(LineMergerTest, TwoUnfinishedLinesAreNotMixed) {
  feed_and_pause(kRank0, "name? ");
  wait(100ms);
  feed_and_pause(kRank1, "progress 10%");
  wait(1h);
  EXPECT_EQ(shown_, "name? ");
  EXPECT_FALSE(merger_.next_deadline());

  feed(kRank0, "x\n");
  wait(0ms);

  EXPECT_EQ(shown_, "name? x\nprogress 10%");
}

TEST_F(LineMergerTest, AWholeLineDoesNotWaitForAPrompt) {
  feed_and_pause(kRank0, "name? ");
  wait(100ms);

  feed(kRank1, "done\n");

  EXPECT_EQ(shown_, "name? done\n");
}

TEST_F(LineMergerTest, ALineOf64KiBIsSplit) {
  const std::string half(LineMerger::kMaxLine / 2, 'x');

  feed(kRank0, half);
  EXPECT_EQ(shown_, "");
  feed(kRank0, half);
  EXPECT_EQ(shown_.size(), LineMerger::kMaxLine);
  feed(kRank0, "end\n");

  EXPECT_EQ(shown_, half + half + "end\n");
}

TEST_F(LineMergerTest, TheEndOfAStreamShowsItsUnfinishedLine) {
  feed(kRank0, "no newline");

  merger_.finish(kRank0, shown_);

  EXPECT_EQ(shown_, "no newline");
}

TEST_F(LineMergerTest, BytesThatAreNoTextPassUnchanged) {
  std::string bytes("\0\xff\xc3\r\x1b[31m\n", 10);

  feed(kRank0, bytes);

  EXPECT_EQ(shown_, bytes);
}

TEST_F(LineMergerTest, APrefixStandsBeforeEachLineOnce) {
  merger_.add(7, "[r7 err] ", 100ms);

  feed_and_pause(7, "a\nb\nc");
  wait(100ms);
  feed(7, "d\n\n");

  EXPECT_EQ(shown_, "[r7 err] a\n[r7 err] b\n[r7 err] cd\n[r7 err] \n");
}

TEST_F(LineMergerTest, ALineThatLostItsBeginningIsLeftOut) {
  feed(kRank0, "beg");

  EXPECT_EQ(merger_.drop(kRank0, "inning"), 9U);
  feed(kRank0, "rest");
  feed(kRank0, " of it\nnext\n");

  EXPECT_EQ(shown_, "next\n");
  EXPECT_EQ(merger_.take_skipped(), 11U);
}

TEST_F(LineMergerTest, ALossThatEndsWithALineTearsNoOther) {
  EXPECT_EQ(merger_.drop(kRank0, "whole\n"), 6U);

  feed(kRank0, "next\n");

  EXPECT_EQ(shown_, "next\n");
}

TEST_F(LineMergerTest, AStreamWithoutNewlinesIsNotLeftOutForEver) {
  merger_.drop(kRank0, "x");

  feed(kRank0, std::string(LineMerger::kMaxLine - 1, 'x'));
  feed(kRank0, "xyz\n");

  EXPECT_EQ(shown_, "yz\n");
  EXPECT_EQ(merger_.take_skipped(), LineMerger::kMaxLine);
}

TEST_F(LineMergerTest, ANoteStartsOnARowOfItsOwn) {
  feed_and_pause(kRank0, "name? ");
  wait(100ms);

  merger_.note("[accel: 5 bytes dropped]", shown_);

  EXPECT_EQ(shown_, "name? \n[accel: 5 bytes dropped]\n");
}

}  // namespace
}  // namespace accel::supervisor::line_merger_test
