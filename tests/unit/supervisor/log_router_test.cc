// The router with real pipes and files: routes, losslessness, and the faults of sinks
// (docs/faults.md 17, 21-25). The test plays the workers by writing into their descriptors.

#include "runtime/supervisor/log_router.h"

#include <atomic>
#include <cstring>
#include <fstream>
#include <future>
#include <iterator>
#include <regex>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "runtime/supervisor/log_layout.h"
#include "runtime/supervisor/pseudo_terminal.h"
#include "runtime/supervisor/stdin_pump.h"
#include "tests/support/scratch_folder.h"

namespace accel::supervisor {
namespace {

using namespace std::chrono_literals;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr auto kGenerous = 60s;  // a bound for waits that succeed at once

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool wait_for(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kGenerous;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

// Stands for the owner's stdout or stderr: a pipe, with a thread that reads it when asked to.
class FakeConsole {
 public:
  FakeConsole() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read_end_.reset(ends[0]);
    write_end_.reset(ends[1]);
  }
  ~FakeConsole() {
    write_end_.reset();
    if (reader_.joinable()) reader_.join();
  }

  [[nodiscard]] int fd() const { return write_end_.get(); }

  void read_along() {
    reader_ = std::thread([this] {
      char buffer[65536];
      for (ssize_t got = 0; (got = ::read(read_end_.get(), buffer, sizeof buffer)) > 0;) {
        const std::lock_guard lock(mutex_);
        text_.append(buffer, static_cast<std::size_t>(got));
      }
    });
  }
  void hang_up() { read_end_.reset(); }

  // Ends a writer that was given up and still uses its descriptor, which therefore stays open.
  void leave_to_writer() {
    (void)write_end_.release();
    hang_up();
  }

  [[nodiscard]] std::string so_far() {
    const std::lock_guard lock(mutex_);
    return text_;
  }

  // Everything, once nobody writes any more.
  [[nodiscard]] std::string all() {
    write_end_.reset();
    if (!reader_.joinable()) read_along();
    reader_.join();
    return text_;
  }

 private:
  UniqueFd read_end_;
  UniqueFd write_end_;
  std::thread reader_;
  std::mutex mutex_;
  std::string text_;
};

class LogRouterTest : public ::testing::Test {
 protected:
  LogRouterTest() { options_.job_id = "job"; }

  void start(int num_workers) {
    options_.owner_out = out_.fd();
    options_.owner_err = err_.fd();
    for (int rank = 0; rank < num_workers; ++rank) {
      WorkerSpec worker = worker_;
      worker.local_rank = rank;
      worker.global_rank = rank;
      options_.workers.push_back(worker);
    }
    auto started = LogRouter::start(options_);
    ASSERT_TRUE(started) << started.error().what();
    router_ = *std::move(started);
  }

  WorkerStdio open(int rank, int generation = 0) {
    auto stdio = router_->open(rank, generation);
    EXPECT_TRUE(stdio) << stdio.error().what();
    return *std::move(stdio);
  }

  void cut(int rank) {
    std::promise<void> done;
    router_->cut(rank, [&done] { done.set_value(); });
    ASSERT_EQ(done.get_future().wait_for(kGenerous), std::future_status::ready);
  }

  bool close() { return router_->close(kGenerous); }

  std::filesystem::path log_of(int rank, Stream stream, int generation = 0) {
    return LogLayout(folder_.path(), "job").stream_file(rank, generation, stream);
  }

  static void say(const UniqueFd& fd, std::string_view text) {
    while (!text.empty()) {
      const ssize_t written = ::write(fd.get(), text.data(), text.size());
      ASSERT_GT(written, 0) << std::strerror(errno);
      text.remove_prefix(static_cast<std::size_t>(written));
    }
  }

  test::ScratchFolder folder_;
  FakeConsole out_;
  FakeConsole err_;
  WorkerSpec worker_;
  LogRouterOptions options_;
  std::unique_ptr<LogRouter> router_;
};

TEST_F(LogRouterTest, LinesOfAllRanksReachTheConsoleUnchanged) {
  out_.read_along();
  err_.read_along();
  start(2);
  {
    const WorkerStdio zero = open(0);
    const WorkerStdio one = open(1);
    say(zero.out, "to out\n");
    say(one.err, "to err\xff");
  }
  cut(0);
  cut(1);
  EXPECT_TRUE(close());

  EXPECT_EQ(out_.all(), "to out\n");
  EXPECT_EQ(err_.all(), "to err\xff");
  EXPECT_EQ(router_->tail(0).out, "to out\n");
  EXPECT_EQ(router_->tail(1).err, "to err\xff");
  EXPECT_THAT(router_->notices(), IsEmpty());
}

TEST_F(LogRouterTest, APromptAppearsWithoutANewline) {
  out_.read_along();
  start(1);
  const WorkerStdio worker = open(0);

  say(worker.out, "name? ");

  EXPECT_TRUE(wait_for([this] { return out_.so_far() == "name? "; }));
}

TEST_F(LogRouterTest, LinesOfEightWritersAreNeverMixed) {
  constexpr int kRanks = 8;
  constexpr int kLines = 2'000;
  options_.line_patience = kGenerous;  // however long a writer waits for a processor
  out_.read_along();
  start(kRanks);
  std::vector<std::thread> writers;
  for (int rank = 0; rank < kRanks; ++rank) {
    writers.emplace_back([stdio = open(rank), rank] {
      for (int line = 0; line < kLines; ++line) {
        const std::string name = "rank " + std::to_string(rank) + " line " + std::to_string(line);
        say(stdio.out, name);  // in two pieces
        say(stdio.out, " end\n");
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  for (int rank = 0; rank < kRanks; ++rank) cut(rank);
  EXPECT_TRUE(close());

  std::istringstream lines(out_.all());
  std::vector<int> next(kRanks, 0);
  int rank = 0;
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ASSERT_EQ(std::sscanf(line.c_str(), "rank %d line %d end", &rank, &number), 2) << line;
    ASSERT_THAT(line, EndsWith(" end"));
    ASSERT_EQ(number, next.at(static_cast<std::size_t>(rank))++) << line;
  }
  EXPECT_THAT(next, ::testing::Each(kLines));
}

// Random bytes: no text, no newlines to rely on.
std::string random_bytes(std::size_t size, unsigned seed) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) {
    seed = seed * 1664525U + 1013904223U;
    byte = static_cast<char>(seed >> 24U);
  }
  return bytes;
}

TEST_F(LogRouterTest, FilesAreEqualToTheByte) {
  options_.log.dir = folder_.path();
  worker_.tee = Streams::kAll;
  out_.read_along();
  err_.read_along();
  start(2);
  const std::string bytes[2] = {random_bytes(5'000'001, 1), random_bytes(3'000'003, 2)};
  std::vector<std::thread> writers;
  for (int rank = 0; rank < 2; ++rank) {
    writers.emplace_back([stdio = open(rank), &bytes, rank] { say(stdio.out, bytes[rank]); });
  }
  for (std::thread& writer : writers) writer.join();
  cut(0);
  cut(1);
  EXPECT_TRUE(close());

  EXPECT_EQ(content_of(log_of(0, Stream::kOut)), bytes[0]);
  EXPECT_EQ(content_of(log_of(1, Stream::kOut)), bytes[1]);
  EXPECT_EQ(content_of(log_of(1, Stream::kErr)), "");
  EXPECT_EQ(out_.all().size(), bytes[0].size() + bytes[1].size());
  EXPECT_THAT(router_->notices(), IsEmpty());
}

TEST_F(LogRouterTest, ARedirectedFloodIsEqualToTheByteAndKeepsItsTail) {
  options_.log.dir = folder_.path();
  worker_.redirect = Streams::kAll;
  start(1);
  const std::string bytes = random_bytes(9'000'000, 3);
  {
    const WorkerStdio worker = open(0);
    say(worker.err, bytes);
  }
  cut(0);

  EXPECT_EQ(router_->tail(0).err, bytes.substr(bytes.size() - 64 * 1024));
  EXPECT_TRUE(close());
  EXPECT_EQ(content_of(log_of(0, Stream::kErr)), bytes);
  EXPECT_EQ(err_.all(), "");
}

TEST_F(LogRouterTest, EachGenerationHasItsFolder) {
  options_.log.dir = folder_.path();
  worker_.redirect = Streams::kAll;
  start(1);
  for (int generation = 0; generation < 2; ++generation) {
    say(open(0, generation).out, "generation " + std::to_string(generation));
    cut(0);
  }
  EXPECT_TRUE(close());

  EXPECT_EQ(content_of(log_of(0, Stream::kOut, 0)), "generation 0");
  EXPECT_EQ(content_of(log_of(0, Stream::kOut, 1)), "generation 1");
  EXPECT_EQ(router_->error_file(0, 1), folder_.path() / "job/attempt_1/0/error.json");
}

TEST_F(LogRouterTest, APrefixNamesRankAndStream) {
  options_.log.prefix = true;
  start(1);
  say(open(0).err, "a\nb\n");
  cut(0);
  EXPECT_TRUE(close());

  EXPECT_EQ(err_.all(), "[r0 err] a\n[r0 err] b\n");
}

TEST_F(LogRouterTest, AFolderThatCannotBeMadeIsAnError) {
  std::ofstream(folder_.path() / "file") << "x";
  options_.log.dir = folder_.path() / "file";

  const auto started = LogRouter::start(options_);

  ASSERT_FALSE(started);
  EXPECT_EQ(started.error().code(), ErrorCode::kLogUnwritable);
  EXPECT_THAT(started.error().message(), HasSubstr("Not a directory"));
}

TEST_F(LogRouterTest, ARedirectWithoutAFolderIsAnError) {
  WorkerSpec worker;
  worker.redirect = Streams::kOut;
  options_.workers = {worker};

  const auto started = LogRouter::start(options_);

  ASSERT_FALSE(started);
  EXPECT_THAT(started.error().remedy(), HasSubstr("--log_dir"));
}

// Fault 17.
TEST_F(LogRouterTest, ADescendantThatKeepsThePipeIsNotWaitedForLong) {
  start(1);
  const WorkerStdio worker_and_descendant = open(0);
  say(worker_and_descendant.out, "last words");

  cut(0);  // would never return if the end of the pipe were awaited

  EXPECT_EQ(router_->tail(0).out, "last words");
  EXPECT_TRUE(close());
  EXPECT_EQ(out_.all(), "last words");
}

// Fault 17.
TEST_F(LogRouterTest, ADescendantThatWritesForEverIsCut) {
  options_.descendant_limit = 50ms;
  std::atomic<bool> is_cut = false;
  out_.read_along();
  start(1);
  std::thread descendant([stdio = open(0), &is_cut] {
    const std::string line(4095, 'x');
    // The broken pipe comes as an error here, because this thread blocks the signal.
    sigset_t broken_pipe;
    sigemptyset(&broken_pipe);
    sigaddset(&broken_pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
    while (::write(stdio.out.get(), line.data(), line.size()) > 0) {
    }
    is_cut = true;
  });

  cut(0);
  descendant.join();

  EXPECT_TRUE(is_cut);
  EXPECT_TRUE(close());
}

// Fault 25: back-pressure while the reader is slow, dropping once it has not moved for the limit.
TEST_F(LogRouterTest, AConsoleThatStallsDropsWithAMarkerAndComesBack) {
  options_.stall_limit = 50ms;
  start(1);
  std::string line(1023, 'x');
  line += '\n';
  {
    const WorkerStdio worker = open(0);
    for (int i = 0; i < 8'000; ++i) say(worker.out, line);  // 8 MB: more than all buffers hold

    out_.read_along();
    EXPECT_TRUE(wait_for([&] {
      say(worker.out, line);
      return out_.so_far().find("bytes dropped]") != std::string::npos;
    }));
    say(worker.out, "the end\n");
  }
  cut(0);
  EXPECT_TRUE(close());

  const std::string shown = out_.all();
  EXPECT_THAT(shown, EndsWith("the end\n"));
  EXPECT_TRUE(std::regex_search(shown, std::regex("\n\\[accel: [0-9]+ bytes dropped\\]\n")));
  EXPECT_THAT(router_->notices(), Contains(StartsWith("stdout: took nothing for 50 ms")));
}

// Fault 25, lossless: everything arrives at a reader that starts late but within the limit.
TEST_F(LogRouterTest, ASlowConsoleHoldsTheWorkerBackAndLosesNothing) {
  options_.stall_limit = kGenerous;
  start(1);
  const std::string bytes = random_bytes(6'000'000, 4);
  std::thread writer([stdio = open(0), &bytes] { say(stdio.out, bytes); });
  pollfd full{.fd = out_.fd(), .events = POLLOUT, .revents = 0};
  EXPECT_TRUE(wait_for([&full] { return ::poll(&full, 1, 0) == 0; }));

  out_.read_along();
  writer.join();
  cut(0);
  EXPECT_TRUE(close());

  EXPECT_EQ(out_.all(), bytes);
  EXPECT_THAT(router_->notices(), IsEmpty());
}

// What a slow reader has not taken when the workers end is still written.
TEST_F(LogRouterTest, ClosingWaitsForASinkThatMoves) {
  options_.stall_limit = kGenerous;
  start(2);
  const std::string bytes = random_bytes(100'000, 7);  // fits into the worker's pipe
  say(open(0).out, bytes);
  say(open(1).out, bytes);
  std::thread late([this] {
    pollfd full{.fd = out_.fd(), .events = POLLOUT, .revents = 0};
    EXPECT_TRUE(wait_for([&full] { return ::poll(&full, 1, 0) == 0; }));
    out_.read_along();
  });

  EXPECT_TRUE(router_->close(kGenerous));
  late.join();

  EXPECT_EQ(out_.all().size(), 2 * bytes.size());
}

TEST_F(LogRouterTest, ClosingGivesUpOnASinkThatStandsStill) {
  options_.stall_limit = kGenerous;
  start(1);
  say(open(0).out, random_bytes(100'000, 8));  // fits into the worker's pipe

  EXPECT_FALSE(router_->close(50ms));

  EXPECT_THAT(router_->notices(), Contains(HasSubstr("not written in time")));
  out_.leave_to_writer();
}

TEST_F(LogRouterTest, AClosedConsoleStopsNobody) {
  options_.log.dir = folder_.path();
  worker_.tee = Streams::kAll;
  out_.hang_up();
  start(1);
  const std::string bytes = random_bytes(3'000'000, 5);
  say(open(0).out, bytes);
  cut(0);
  EXPECT_TRUE(close());

  EXPECT_EQ(content_of(log_of(0, Stream::kOut)), bytes);
  EXPECT_THAT(router_->notices(),
              ElementsAre(AllOf(StartsWith("stdout: "), HasSubstr("Broken pipe")),
                          EndsWith("3000000 bytes were dropped")));
}

// Fault 21: under the policy `drop` a sink that takes nothing does not hold the worker up, and the
// file beside it still gets everything that fits.
TEST_F(LogRouterTest, UnderTheDropPolicyAStoppedConsoleHoldsNobodyUp) {
  options_.log.drop = true;
  options_.stall_limit = kGenerous;
  start(1);
  const std::string line(1024, 'x');
  const WorkerStdio worker = open(0);

  for (int i = 0; i < 20'000; ++i) say(worker.out, line);

  EXPECT_TRUE(wait_for([this] { return !router_->notices().empty(); }));
  EXPECT_THAT(router_->notices(), Contains(StartsWith("stdout: does not keep up")));
  out_.hang_up();
}

// Fault 22. (LogFileTest has the disk that is full and the one that recovers.)
TEST_F(LogRouterTest, AFullDiskStopsNobodyAndTheTailStays) {
  options_.log.dir = folder_.path();
  worker_.redirect = Streams::kAll;
  start(1);
  // A folder stands where the file should be: its creation fails for as long as the job lasts.
  std::filesystem::create_directories(log_of(0, Stream::kOut));
  const std::string bytes = random_bytes(4'000'000, 6);

  say(open(0).out, bytes);
  cut(0);
  EXPECT_TRUE(close());

  EXPECT_EQ(router_->tail(0).out, bytes.substr(bytes.size() - 64 * 1024));
  EXPECT_THAT(router_->notices(),
              ElementsAre(HasSubstr("Is a directory"), EndsWith("4000000 bytes were dropped")));
}

TEST_F(LogRouterTest, AWorkerThatNeverWroteHasAnEmptyTail) {
  start(1);
  open(0);
  cut(0);

  EXPECT_EQ(router_->tail(0).out, "");
  EXPECT_EQ(router_->tail(5).err, "");
}

TEST_F(LogRouterTest, WithoutAWorkerACutIsDoneAtOnce) {
  start(1);

  cut(0);
  EXPECT_TRUE(close());
}

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
  cut(0);
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
}  // namespace accel::supervisor
