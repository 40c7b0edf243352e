// The faults of sinks and descendants (docs/faults.md 17, 21-25), and the end of a router that is not
// given time.

#include <atomic>
#include <regex>

#include <poll.h>

#include "runtime/supervisor/drain_watch.h"
#include "runtime/supervisor/log_router.h"
#include "tests/support/log_router_fixture.h"

namespace accel::supervisor::log_router_faults_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr TimePoint kNow{1h};

TEST_F(LogRouterTest, Fault24AFolderThatCannotBeMadeIsAnError) {
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

TEST_F(LogRouterTest, Fault17ADescendantThatKeepsThePipeIsNotWaitedForLong) {
  start(1);
  const WorkerStdio worker_and_descendant = open(0);
  say(worker_and_descendant.out, "last words");

  cut(0);  // would never return if the end of the pipe were awaited

  EXPECT_EQ(router_->tail(0).out, "last words");
  EXPECT_TRUE(close());
  EXPECT_EQ(out_.all(), "last words");
}

TEST_F(LogRouterTest, Fault17ADescendantThatWritesForEverIsCut) {
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
TEST_F(LogRouterTest, Fault25AConsoleThatStallsDropsWithAMarkerAndComesBack) {
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
    // The reader may have stood still again.
    EXPECT_TRUE(wait_for([&] {
      say(worker.out, "the end\n");
      return out_.so_far().ends_with("the end\n");
    }));
  }
  cut(0);
  EXPECT_TRUE(close());

  const std::string shown = out_.all();
  EXPECT_THAT(shown, EndsWith("the end\n"));
  EXPECT_TRUE(std::regex_search(shown, std::regex("\n\\[accel: [0-9]+ bytes dropped\\]\n")));
  EXPECT_THAT(router_->notices(), Contains(StartsWith("stdout: took nothing for 50 ms")));
}

// Fault 25, lossless: everything arrives at a reader that starts late but within the limit.
TEST_F(LogRouterTest, Fault25ASlowConsoleHoldsTheWorkerBackAndLosesNothing) {
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

// A user who has asked to leave is not kept by a console that nobody reads.
TEST_F(LogRouterTest, ClosingEndsWithoutASinkWhenTheUserLeaves) {
  options_.stall_limit = kGenerous;
  start(1);
  say(open(0).out, random_bytes(100'000, 9));  // fits into the worker's pipe
  std::atomic<bool> is_called_back = false;

  router_->begin_close([&is_called_back] { is_called_back = true; });
  DrainWatch watch(kGenerous, kNow);
  EXPECT_EQ(watch.observe(router_->is_drained(), router_->progress(), kNow),
            DrainWatch::Verdict::kWait);
  watch.hurry(kNow);
  EXPECT_EQ(watch.observe(router_->is_drained(), router_->progress(), kNow + DrainWatch::kHurry),
            DrainWatch::Verdict::kGiveUp);
  EXPECT_FALSE(router_->end_close("before the job was left"));

  EXPECT_THAT(router_->notices(), Contains(HasSubstr("not written before the job was left")));
  out_.leave_to_writer();
}

TEST_F(LogRouterTest, TheEndOfTheLastWriterIsHeard) {
  out_.read_along();
  start(1);
  say(open(0).out, "last words");
  std::atomic<bool> is_drained = false;
  router_->begin_close([&is_drained] { is_drained = true; });

  EXPECT_TRUE(wait_for([&] { return is_drained && router_->is_drained(); }));
  EXPECT_TRUE(router_->end_close("in time"));
  EXPECT_EQ(out_.all(), "last words");
}

TEST_F(LogRouterTest, Fault25AClosedConsoleStopsNobody) {
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
TEST_F(LogRouterTest, Fault21UnderTheDropPolicyAStoppedConsoleHoldsNobodyUp) {
  options_.log.overflow = Overflow::kDrop;
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
TEST_F(LogRouterTest, Fault22AFullDiskStopsNobodyAndTheTailStays) {
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

}  // namespace
}  // namespace accel::supervisor::log_router_faults_test
