#include "launcher/run/notice_queue.h"

#include <csignal>
#include <string>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "runtime/unique_fd.h"

namespace accel::launcher::notice_queue_test {
namespace {

// A console whose reader stands still until the test reads.
class NoticeQueueTest : public ::testing::Test {
 protected:
  NoticeQueueTest() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read_end_.reset(ends[0]);
    write_end_.reset(ends[1]);
  }

  void fill() {
    ::fcntl(write_end_.get(), F_SETFL, O_NONBLOCK);
    const std::string page(4096, 'x');
    while (::write(write_end_.get(), page.data(), page.size()) > 0) {
    }
    ::fcntl(write_end_.get(), F_SETFL, 0);  // a write would wait from here on
  }

  std::string read_all() {
    std::string text;
    char buffer[4096];
    ::fcntl(read_end_.get(), F_SETFL, O_NONBLOCK);
    for (ssize_t got = 0; (got = ::read(read_end_.get(), buffer, sizeof buffer)) > 0;) {
      text.append(buffer, static_cast<std::size_t>(got));
    }
    return text;
  }

  UniqueFd read_end_;
  UniqueFd write_end_;
};

TEST_F(NoticeQueueTest, LineIsShownAtOnceWhereThereIsRoom) {
  NoticeQueue queue(write_end_.get());

  queue.push("restart 1");

  EXPECT_EQ(read_all(), "restart 1\n");
  EXPECT_EQ(queue.waiting_fd(), -1);
}

TEST_F(NoticeQueueTest, ConsoleThatIsNotReadIsNotWaitedFor) {
  fill();
  NoticeQueue queue(write_end_.get());

  queue.push("restart 1");  // would never return if it were written

  EXPECT_EQ(queue.waiting_fd(), write_end_.get());
  read_all();
  queue.write_some();
  EXPECT_EQ(read_all(), "restart 1\n");
  EXPECT_EQ(queue.waiting_fd(), -1);
}

TEST_F(NoticeQueueTest, WhatFoundNoRoomIsGivenBack) {
  fill();
  NoticeQueue queue(write_end_.get());
  queue.push("one");
  queue.push("two");

  EXPECT_EQ(queue.take_unwritten(), "one\ntwo\n");
  EXPECT_EQ(queue.waiting_fd(), -1);
}

TEST_F(NoticeQueueTest, WhatIsDroppedLeavesAMarkWithItsNumber) {
  fill();
  NoticeQueue queue(write_end_.get());
  const std::string half(32 * 1024, 'n');

  for (const char* line : {"first", "second", "third"}) queue.push(line);
  queue.push(half);
  queue.push("newest" + half);

  EXPECT_EQ(queue.take_unwritten(),
            "first\n[3 notices are missing here: nobody read them in time]\nnewest" + half + "\n");
}

TEST_F(NoticeQueueTest, MarkStandsWhereTheLinesWouldHaveStood) {
  fill();
  NoticeQueue queue(write_end_.get());
  const std::string much(60 * 1024, 'n');
  for (const std::string& line : {std::string("first"), std::string("second"), much})
    queue.push(line);
  queue.push("third" + much);
  read_all();

  queue.write_some();
  std::string shown = read_all();
  for (std::string more = "more"; !more.empty();) {
    queue.write_some();
    shown += more = read_all();
  }

  EXPECT_EQ(shown,
            "first\n[2 notices are missing here: nobody read them in time]\nthird" + much + "\n");
}

TEST_F(NoticeQueueTest, ConsoleThatIsGoneIsForgotten) {
  const auto before = ::signal(SIGPIPE, SIG_IGN);
  read_end_.reset();
  NoticeQueue queue(write_end_.get());

  queue.push("restart 1");

  EXPECT_EQ(queue.waiting_fd(), -1);
  ::signal(SIGPIPE, before);
}

}  // namespace
}  // namespace accel::launcher::notice_queue_test
