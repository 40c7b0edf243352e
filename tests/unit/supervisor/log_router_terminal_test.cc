// Workers on a terminal: pseudo terminals, their size, and what is typed.

#include <sys/ioctl.h>
#include <termios.h>

#include "runtime/supervisor/kernel/pseudo_terminal.h"
#include "runtime/supervisor/logs/log_router.h"
#include "runtime/supervisor/logs/stdin_pump.h"
#include "tests/support/log_router_fixture.h"

namespace accel::supervisor::log_router_terminal_test {
namespace {

// The owner's terminal, played by a pseudo terminal of the test.
class LogRouterTerminalTest : public LogRouterTest {
 protected:
  void start_on_terminal(int num_workers, bool use_pty = true) {
    auto opened = open_pseudo_terminal({.rows = 24, .columns = 80});
    ASSERT_TRUE(opened) << opened.error().what();
    owner_ = *std::move(opened);
    options_.owner_in = owner_.slave.get();
    options_.console.use_pty = use_pty;
    options_.owner_out = owner_.slave.get();
    options_.owner_err = owner_.slave.get();
    for (int rank = 0; rank < num_workers; ++rank) {
      WorkerSpec worker;
      worker.local_rank = rank;
      options_.workers.push_back(worker);
    }
    auto started = LogRouter::start(options_);
    ASSERT_TRUE(started) << started.error().what();
    router_ = *std::move(started);
  }

  std::string read_screen(std::size_t size) {
    std::string text;
    wait_for([&] {
      char buffer[4096];
      const ssize_t got = ::read(owner_.master.get(), buffer, sizeof buffer);
      if (got > 0) text.append(buffer, static_cast<std::size_t>(got));
      return text.size() >= size;
    });
    return text;
  }

  static std::string read_some(const UniqueFd& fd) {
    char buffer[4096];
    const ssize_t got = ::read(fd.get(), buffer, sizeof buffer);
    return {buffer, got > 0 ? static_cast<std::size_t>(got) : 0};
  }

  void TearDown() override {
    if (router_) close();
  }

  PseudoTerminal owner_;
};

TEST_F(LogRouterTerminalTest, RankZeroSeesATerminalOfTheSameSize) {
  start_on_terminal(2);
  const WorkerStdio zero = open(0);
  const WorkerStdio one = open(1);

  EXPECT_TRUE(::isatty(zero.in.get()) && ::isatty(zero.out.get()) && ::isatty(zero.err.get()));
  EXPECT_FALSE(::isatty(one.out.get()));
  EXPECT_EQ(window_size_of(zero.out.get()).columns, 80);
  router_->resize_window(50, 132);
  EXPECT_EQ(window_size_of(zero.out.get()).rows, 50);
  EXPECT_EQ(window_size_of(zero.err.get()).columns, 132);
}

TEST_F(LogRouterTerminalTest, OutputPassesUnchangedAndProgressBarsMove) {
  start_on_terminal(2);
  const WorkerStdio zero = open(0);

  say(zero.out, "\r 10%|#    |");
  EXPECT_EQ(read_screen(12), "\r 10%|#    |");
  say(zero.out, "\r 20%|##   |\n");
  EXPECT_EQ(read_screen(13), "\r 20%|##   |\n");
}

TEST_F(LogRouterTerminalTest, WhatIsTypedReachesRankZero) {
  start_on_terminal(2);
  const WorkerStdio zero = open(0);

  ASSERT_EQ(::write(owner_.master.get(), "hello\n", 6), 6);

  EXPECT_EQ(read_some(zero.in), "hello\n");
}

TEST_F(LogRouterTerminalTest, EndOfFileReachesRankZero) {
  start_on_terminal(2);
  const WorkerStdio zero = open(0);

  ASSERT_EQ(::write(owner_.master.get(), "\x04", 1), 1);

  EXPECT_EQ(read_some(zero.in), "");
}

TEST_F(LogRouterTerminalTest, ARestartedRankZeroGetsTheInput) {
  start_on_terminal(2);
  open(0, 0);
  drain(0);
  const WorkerStdio again = open(0, 1);

  ASSERT_EQ(::write(owner_.master.get(), "hello\n", 6), 6);

  EXPECT_EQ(read_some(again.in), "hello\n");
}

TEST_F(LogRouterTerminalTest, WithoutAPseudoTerminalEndOfFileClosesThePipe) {
  start_on_terminal(2, /*use_pty=*/false);
  const WorkerStdio zero = open(0);
  ASSERT_FALSE(::isatty(zero.in.get()));

  ASSERT_EQ(::write(owner_.master.get(), "hi\n\x04", 4), 4);

  EXPECT_EQ(read_some(zero.in), "hi\n");
  EXPECT_EQ(read_some(zero.in), "");
}

TEST(StdinPump, KnowsTheForegroundGroupWhateverTheProgramIsCalled) {
  EXPECT_TRUE(is_foreground_stat("7 (a) S 1) S 1 70 60 34816 70 4194304 1 2"));
  EXPECT_FALSE(is_foreground_stat("7 (sh) S 1 70 60 34816 71 4194304 1 2"));
  EXPECT_FALSE(is_foreground_stat("7 (sh) S 1 70 60 0 -1 4194304 1 2"));
  EXPECT_FALSE(is_foreground_stat(""));
}

}  // namespace
}  // namespace accel::supervisor::log_router_terminal_test
