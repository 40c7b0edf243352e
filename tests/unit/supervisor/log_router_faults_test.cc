// The faults of sinks and descendants (docs/reference/faults.md 17, 21-25), and the end of a router that is not
// given time.

#include <atomic>
#include <cstdio>
#include <regex>
#include <vector>

#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/supervisor/logs/drain_watch.h"
#include "runtime/supervisor/logs/log_router.h"
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

// While it lives this process can open `spare` more.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t spare) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    const UniqueFd lowest_free(::dup(0));
    const rlimit lowered = {.rlim_cur = static_cast<rlim_t>(lowest_free.get()) + spare,
                            .rlim_max = before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &lowered), 0);
  }
  ~FewDescriptors() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
};

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

// With each number of descriptors until there are enough.
TEST_F(LogRouterTest, TooFewDescriptorsAreAnErrorThatNamesTheLimit) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP()
      << "UBSan looks at objects through a pipe, and takes them for none without descriptors";
#endif
  options_.log.dir = folder_.path();
  worker_.redirect = Streams::kAll;
  options_.workers = {worker_};
  std::vector<Error> errors;
  bool has_enough = false;

  for (rlim_t spare = 0; spare < 64 && !has_enough; ++spare) {
    const FewDescriptors few(spare);
    const auto router = LogRouter::start(options_);
    if (!router) {
      errors.push_back(router.error());
    } else if (const auto stdio = (*router)->open(0, 0); !stdio) {
      errors.push_back(stdio.error());
    } else {
      has_enough = true;
    }
  }

  EXPECT_TRUE(has_enough);
  EXPECT_GT(errors.size(), 5U);
  for (const Error& error : errors) {
    EXPECT_EQ(error.code(), ErrorCode::kSpawnFailed);
    EXPECT_THAT(error.message(), HasSubstr("Too many open files"));
  }
}

// Root may start any number: the child is somebody else. It ends without its destructors, so it makes no folder.
TEST(LogRouterDeathTest, TooFewThreadsAreAnErrorThatNamesTheLimit) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto start_without_threads = [] {
    if (::getuid() == 0 && ::setresuid(65534, 65534, 65534) != 0) ::_exit(2);
    const rlimit none = {.rlim_cur = 0, .rlim_max = 0};
    if (::setrlimit(RLIMIT_NPROC, &none) != 0) ::_exit(3);
    const auto router = LogRouter::start({.job_id = "job"});
    if (router) ::_exit(4);
    std::fprintf(stderr, "%s", router.error().render("test").c_str());
    ::_exit(router.error().code() == ErrorCode::kSpawnFailed ? 0 : 5);
  };

  EXPECT_EXIT(start_without_threads(), ::testing::ExitedWithCode(0), "ulimit -u");
}

TEST_F(LogRouterTest, Fault17ADescendantThatKeepsThePipeIsNotWaitedForLong) {
  start(1);
  const WorkerStdio worker_and_descendant = open(0);
  say(worker_and_descendant.out, "last words");

  drain(0);  // would never return if the end of the pipe were awaited

  EXPECT_EQ(router_->tail(0).out, "last words");
  EXPECT_TRUE(close());
  EXPECT_EQ(out_.all(), "last words");
}

TEST_F(LogRouterTest, Fault17ADescendantIsHeardAfterItsWorker) {
  start(1);
  const WorkerStdio worker_and_descendant = open(0);
  say(worker_and_descendant.out, "last words\n");
  drain(0);

  say(worker_and_descendant.out, "of the descendant\n");

  EXPECT_TRUE(close());
  EXPECT_EQ(out_.all(), "last words\nof the descendant\n");
}

TEST_F(LogRouterTest, Fault17ADescendantThatWritesForEverDelaysNothing) {
  options_.descendant_limit = 50ms;
  std::atomic<bool> is_over = false;
  out_.read_along();
  start(1);
  std::thread descendant([stdio = open(0), &is_over] {
    const std::string line(4095, 'x');
    // The broken pipe comes as an error here, because this thread blocks the signal.
    sigset_t broken_pipe;
    sigemptyset(&broken_pipe);
    sigaddset(&broken_pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
    while (::write(stdio.out.get(), line.data(), line.size()) > 0) {
    }
    is_over = true;
  });

  drain(0);
  EXPECT_FALSE(is_over);
  EXPECT_TRUE(close());
  descendant.join();
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
  drain(0);
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
  drain(0);
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
  drain(0);
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
  drain(0);
  EXPECT_TRUE(close());

  EXPECT_EQ(router_->tail(0).out, bytes.substr(bytes.size() - 64 * 1024));
  EXPECT_THAT(router_->notices(),
              ElementsAre(HasSubstr("Is a directory"), EndsWith("4000000 bytes were dropped")));
}

}  // namespace
}  // namespace accel::supervisor::log_router_faults_test
