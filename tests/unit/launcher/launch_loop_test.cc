#include "launcher/run/launch_loop.h"

#include <csignal>
#include <string>
#include <vector>

#include <boost/asio/post.hpp>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "launcher/run/notice_queue.h"
#include "runtime/unique_fd.h"
#include "tests/support/fake_worker_host.h"

namespace accel::launcher::launch_loop_test {
namespace {

using supervisor::Stop;
using supervisor::StopMode;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class LaunchLoopTest : public ::testing::Test {
 protected:
  LaunchLoop make(bool shares_terminal = false) {
    return {host_,
            {.shares_terminal = shares_terminal,
             .num_workers = 4,
             .max_restarts = 3,
             .notice = [this](const std::string& text) { notices_.push_back(text); },
             .stop_self = [this] { order_.push_back("stopped"); },
             .window_size =
                 [] {
                   return supervisor::WindowSize{24, 80};
                 }}};
  }

  Stop stop_number(std::size_t index) const { return std::get<Stop>(host_.requests.at(index)); }

  test::FakeWorkerHost host_;
  std::vector<std::string> notices_;
  std::vector<std::string> order_;
};

TEST_F(LaunchLoopTest, CtrlCInterruptsAndASecondOneKills) {
  auto loop = make();

  loop.on_signal({.number = SIGINT});
  loop.on_signal({.number = SIGINT});

  EXPECT_EQ(stop_number(0).mode, StopMode::kInterrupt);
  EXPECT_EQ(stop_number(1).mode, StopMode::kKill);
}

TEST_F(LaunchLoopTest, PreemptionSignalsTerminateAndNameThemselves) {
  for (const int signal : {SIGTERM, SIGHUP, SIGUSR1}) {
    test::FakeWorkerHost host;
    LaunchLoop loop(host, {});

    loop.on_signal({.number = signal});

    const Stop stop = std::get<Stop>(host.requests.at(0));
    EXPECT_EQ(stop.mode, StopMode::kTerminate);
    EXPECT_EQ(stop.signal, signal);
  }
}

TEST_F(LaunchLoopTest, Fault69TheGraceIsWhatTheAllocationLeavesAfterThisSignal) {
  LaunchLoop loop(host_, {.grace = [](int signal) {
                    return supervisor::Milliseconds(signal == SIGTERM ? 25 : 90);
                  }});

  loop.on_signal({.number = SIGTERM});

  EXPECT_EQ(stop_number(0).grace, supervisor::Milliseconds(25));
}

TEST_F(LaunchLoopTest, SignalFromASharedTerminalIsNotSentTwice) {
  auto loop = make(/*shares_terminal=*/true);
  loop.on_event(supervisor::GenerationStarted{.generation = 4});

  loop.on_signal({.number = SIGINT, .is_from_terminal = true});

  EXPECT_EQ(stop_number(0).delivered_to, 4);
}

TEST_F(LaunchLoopTest, Fault70SignalOfTheTerminalIsSentToAWorkerThatIsStillToStart) {
  auto first = make(/*shares_terminal=*/true);
  auto again = make(/*shares_terminal=*/true);
  again.on_event(supervisor::GenerationStarted{});
  again.on_event(supervisor::Restarting{});

  first.on_signal({.number = SIGINT, .is_from_terminal = true});
  again.on_signal({.number = SIGINT, .is_from_terminal = true});

  EXPECT_EQ(stop_number(0).delivered_to, std::nullopt);
  EXPECT_EQ(stop_number(1).delivered_to, std::nullopt);
}

// The worker was not in the terminal's group when the signal came: the shim tells of it later.
TEST_F(LaunchLoopTest, Fault70SignalThatComesWhileEventsAreReadIsOlderThanTheNextEvent) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const UniqueFd read_end(ends[0]);
  const UniqueFd write_end(ends[1]);
  signalfd_siginfo ctrl_c{};
  ctrl_c.ssi_signo = SIGINT;
  ctrl_c.ssi_code = SI_KERNEL;
  host_.push(supervisor::Notice{"first"});
  host_.push(supervisor::GenerationStarted{});
  host_.push(supervisor::JobOutcome{});
  LaunchLoop loop(host_, {.shares_terminal = true, .notice = [&](const std::string&) {
                            ASSERT_EQ(::write(write_end.get(), &ctrl_c, sizeof ctrl_c),
                                      static_cast<ssize_t>(sizeof ctrl_c));
                          }});

  const auto outcome = loop.run(read_end.get());

  ASSERT_TRUE(outcome.has_value());
  ASSERT_THAT(host_.requests, SizeIs(1));
  EXPECT_EQ(stop_number(0).delivered_to, std::nullopt);
}

TEST_F(LaunchLoopTest, SignalFromKillReachesAWorkerOnTheTerminalToo) {
  auto loop = make(/*shares_terminal=*/true);
  loop.on_event(supervisor::GenerationStarted{});

  loop.on_signal({.number = SIGINT, .is_from_terminal = false});

  EXPECT_EQ(stop_number(0).delivered_to, std::nullopt);
}

TEST_F(LaunchLoopTest, CtrlZStopsTheWorkersThenItselfThenResumes) {
  auto loop = make();

  loop.on_signal({.number = SIGTSTP});

  ASSERT_THAT(host_.requests, SizeIs(2));
  EXPECT_TRUE(std::holds_alternative<supervisor::Suspend>(host_.requests[0]));
  EXPECT_TRUE(std::holds_alternative<supervisor::Resume>(host_.requests[1]));
  EXPECT_THAT(order_, ElementsAre("stopped"));
}

TEST_F(LaunchLoopTest, WindowSizeIsPassedOn) {
  auto loop = make();

  loop.on_signal({.number = SIGWINCH});

  EXPECT_EQ(std::get<supervisor::WindowSize>(host_.requests.at(0)).columns, 80);
}

class ProgressLoopTest : public LaunchLoopTest {
 protected:
  LaunchLoop make_with_progress() {
    return {host_,
            {.notice = [this](const std::string& text) { order_.push_back(text + beside()); },
             .stop_self = [this] { order_.push_back("stopped" + beside()); },
             .window_size = [] { return std::nullopt; },
             .progress = {.line = &progress_,
                          .columns = [] { return std::size_t{80}; },
                          .has_terminal = [this] { return has_terminal_; },
                          .now = [this] { return now_; }}}};
  }
  static supervisor::Snapshot at_step(std::uint64_t step) {
    supervisor::Snapshot snapshot;
    snapshot.workers.push_back({.is_alive = true, .beats = 1, .step = step, .times = {}});
    return snapshot;
  }
  // The texts that the shim was asked to show.
  std::vector<std::string> shown() const {
    std::vector<std::string> texts;
    for (const auto& request : host_.requests) {
      if (const auto* status = std::get_if<supervisor::ShowStatus>(&request))
        texts.push_back(status->text);
    }
    return texts;
  }

  std::string beside() const {
    return shown().empty() || shown().back().empty() ? "" : " beside the line";
  }

  TimePoint now_{};
  bool has_terminal_ = true;
  ProgressLine progress_{ProgressWhen::kAuto, TimePoint{}};
};

TEST_F(ProgressLoopTest, EachChangeIsShownOnceAndNoneAfterAStop) {
  LaunchLoop loop = make_with_progress();
  loop.on_event(at_step(5));
  loop.on_event(at_step(5));
  loop.on_event(at_step(6));
  host_.push(supervisor::StatusShown{3});

  loop.on_signal({.number = SIGTERM});
  loop.on_event(at_step(7));

  EXPECT_THAT(shown(), ElementsAre("step 5 | 0:00:00", "step 6 | 0:00:00", ""));
  EXPECT_TRUE(std::holds_alternative<Stop>(host_.requests[2]));  // before it waits for the line
}

TEST_F(ProgressLoopTest, ANoticeWaitsUntilTheLineIsErasedAndLosesNoOtherEvent) {
  LaunchLoop loop = make_with_progress();
  loop.on_event(at_step(5));
  host_.push(supervisor::StatusShown{1});  // of the line itself
  host_.push(supervisor::JobOutcome{.exit_code = 3});
  host_.push(supervisor::StatusShown{2});

  loop.on_event(supervisor::Notice{"told"});
  const auto outcome = loop.run(host_.silent_fd());

  EXPECT_THAT(order_, ElementsAre("told"));
  EXPECT_THAT(shown(), ElementsAre("step 5 | 0:00:00", ""));
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->exit_code, 3);
}

TEST_F(ProgressLoopTest, AShimThatIsLostMeanwhileIsStillToldOf) {
  LaunchLoop loop = make_with_progress();
  loop.on_event(at_step(5));
  host_.fail(Error(ErrorCode::kShimLost, "gone"));

  loop.on_event(supervisor::Notice{"told"});
  const auto outcome = loop.run(host_.silent_fd());

  EXPECT_THAT(order_, ElementsAre("told"));
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code(), ErrorCode::kShimLost);
}

TEST_F(ProgressLoopTest, NothingIsShownInTheBackgroundOfATerminal) {
  LaunchLoop loop = make_with_progress();
  loop.on_event(at_step(5));
  has_terminal_ = false;
  loop.on_event(at_step(6));
  has_terminal_ = true;
  loop.on_event(at_step(7));

  EXPECT_THAT(shown(), ElementsAre("step 5 | 0:00:00", "", "step 7 | 0:00:00"));
}

TEST_F(ProgressLoopTest, TheLineGoesBeforeTheLauncherStopsItself) {
  LaunchLoop loop = make_with_progress();
  loop.on_event(at_step(5));
  host_.push(supervisor::StatusShown{2});

  loop.on_signal({.number = SIGTSTP});

  EXPECT_THAT(order_, ElementsAre("stopped"));
  EXPECT_THAT(shown(), ElementsAre("step 5 | 0:00:00", ""));
  EXPECT_TRUE(std::holds_alternative<supervisor::Resume>(host_.requests.back()));
}

TEST_F(LaunchLoopTest, RestartIsToldWithItsCauseAndHowManyAreAllowed) {
  auto loop = make();
  supervisor::WorkerExit killed = {
      .global_rank = 3, .cause = supervisor::ExitCause::kSignaled, .signal = SIGKILL};
  supervisor::WorkerExit hung = {
      .global_rank = 1, .cause = supervisor::ExitCause::kHang, .detail = "no step for 300 s"};
  supervisor::WorkerExit failed = {.global_rank = 0, .exit_code = 1};
  failed.cause = supervisor::ExitCause::kNonZero;
  failed.last_error = "the loss is not a number";

  loop.on_event(supervisor::Restarting{1, std::chrono::milliseconds(500), killed});
  loop.on_event(supervisor::Restarting{2, {}, hung});
  loop.on_event(supervisor::Restarting{3, {}, failed});

  EXPECT_THAT(
      notices_,
      ElementsAre("rank 3 of 4 was ended by SIGKILL (Killed); restart 1 of 3 in 500 ms",
                  "rank 1 of 4 made no progress: no step for 300 s; restart 2 of 3",
                  "rank 0 of 4 ended with exit code 1: the loss is not a number; restart 3 of 3"));
}

TEST_F(LaunchLoopTest, RunEndsWithTheOutcome) {
  host_.push(supervisor::Hello{});
  host_.push(supervisor::JobOutcome{.exit_code = 7});
  auto loop = make();

  const auto outcome = loop.run(host_.silent_fd());

  ASSERT_TRUE(outcome.has_value());
  EXPECT_EQ(outcome->exit_code, 7);
}

TEST_F(LaunchLoopTest, OnlyAnInterruptOfTheTerminalThatEndedTheJobEndsTheLauncherToo) {
  const auto is_interrupted = [&](const ReceivedSignal& signal, supervisor::JobOutcome outcome) {
    auto loop = make();
    loop.on_signal(signal);
    loop.on_event(outcome);
    return loop.is_interrupted();
  };
  const ReceivedSignal ctrl_c = {.number = SIGINT, .is_from_terminal = true};

  EXPECT_TRUE(is_interrupted(ctrl_c, {.exit_code = 130}));
  EXPECT_FALSE(is_interrupted({.number = SIGINT}, {.exit_code = 130}));
  EXPECT_FALSE(is_interrupted(ctrl_c, {.success = true}));
  EXPECT_FALSE(is_interrupted(ctrl_c, {.exit_code = 85, .has_saved = true}));
  EXPECT_FALSE(is_interrupted({.number = SIGHUP, .is_from_terminal = true}, {.exit_code = 129}));
}

TEST_F(LaunchLoopTest, WhatWasToldIsNotToldAgainWithTheOutcome) {
  host_.push(supervisor::Hello{});
  host_.push(supervisor::Notice{"rank0.log: No space left on device"});
  host_.push(supervisor::JobOutcome{
      .notices = {"rank0.log: No space left on device", "a process did not end"}});
  auto loop = make();

  const auto outcome = loop.run(host_.silent_fd());

  ASSERT_TRUE(outcome.has_value());
  EXPECT_THAT(notices_, ElementsAre("rank0.log: No space left on device"));
  EXPECT_THAT(outcome->notices, ElementsAre("a process did not end"));
}

TEST_F(LaunchLoopTest, ConsoleThatIsNotReadHoldsTheLoopUpNeitherForNoticesNorForTheEnd) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const UniqueFd read_end(ends[0]);
  const UniqueFd write_end(ends[1]);
  const std::string page(4096, 'x');
  while (::write(write_end.get(), page.data(), page.size()) > 0) {
  }
  ::fcntl(write_end.get(), F_SETFL, 0);  // a write would wait from here on
  NoticeQueue queue(write_end.get());
  host_.push(supervisor::Notice{"stdout: took nothing for 2000 ms"});
  host_.push(supervisor::JobOutcome{.exit_code = 7});
  LaunchLoop loop(
      host_,
      {.notice = [&queue](const std::string& text) { queue.push(text); }, .notices = &queue});

  const auto outcome = loop.run(host_.silent_fd());

  ASSERT_TRUE(outcome.has_value());
  EXPECT_EQ(queue.take_unwritten(), "stdout: took nothing for 2000 ms\n");
}

TEST_F(LaunchLoopTest, WhoWatchesHearsEachEventAndItsHandlersRunBesides) {
  boost::asio::io_context context;
  std::vector<std::size_t> heard;
  boost::asio::post(context, [&] { host_.push(supervisor::JobOutcome{.exit_code = 7}); });
  host_.push(supervisor::GenerationStarted{.pids = {1}});
  LaunchLoop loop(
      host_,
      {.on_event = [&](const auto& event) { heard.push_back(event.index()); }, .beside = &context});

  const auto outcome = loop.run(host_.silent_fd());

  ASSERT_TRUE(outcome.has_value());
  EXPECT_EQ(outcome->exit_code, 7);
  EXPECT_THAT(heard, SizeIs(2));
}

TEST_F(LaunchLoopTest, SignalsAreHeardBesideHandlersToo) {
  boost::asio::io_context context;
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGTERM);
  sigset_t before;
  ::sigprocmask(SIG_BLOCK, &set, &before);
  const UniqueFd signals(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  ::raise(SIGTERM);
  int num_asked = 0;
  LaunchLoop loop(host_,
                  {.on_stop_asked =
                       [&] {
                         ++num_asked;
                         host_.push(supervisor::JobOutcome{.exit_code = 143});
                       },
                   .beside = &context});

  const auto outcome = loop.run(signals.get());

  ASSERT_TRUE(outcome.has_value());
  EXPECT_EQ(num_asked, 1);
  EXPECT_EQ(stop_number(0).signal, SIGTERM);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
}

TEST_F(LaunchLoopTest, AConsoleThatTakesNothingIsWaitedForAndKeepsItsFlags) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const UniqueFd reader(ends[0]);
  const UniqueFd console(ends[1]);
  const std::string page(4096, 'x');
  while (::write(console.get(), page.data(), page.size()) > 0) {
  }
  ASSERT_EQ(::fcntl(console.get(), F_SETFL, 0), 0);
  NoticeQueue notices(console.get());
  notices.push("told");
  boost::asio::io_context context;
  boost::asio::post(context, [&] {  // the loop waits for room by now
    std::string taken(1 << 20, '\0');
    ASSERT_GT(::read(reader.get(), taken.data(), taken.size()), 0);
    boost::asio::post(context, [&] { host_.push(supervisor::JobOutcome{.exit_code = 7}); });
  });
  LaunchLoop loop(host_, {.notices = &notices, .beside = &context});

  const auto outcome = loop.run(host_.silent_fd());

  ASSERT_TRUE(outcome.has_value());
  EXPECT_EQ(::fcntl(console.get(), F_GETFL) & O_NONBLOCK, 0);
}

TEST(TakenSignals, GiveTheSignalsBackWithoutThoseThatCameMeanwhile) {
  {
    const auto signals = TakenSignals::take();
    ASSERT_TRUE(signals.has_value());
    ::raise(SIGINT);  // would end this test at the closing brace if it were still pending
  }
  sigset_t blocked;
  ::sigprocmask(SIG_BLOCK, nullptr, &blocked);
  EXPECT_EQ(::sigismember(&blocked, SIGINT), 0);
}

TEST_F(LaunchLoopTest, RunEndsWithTheErrorOfALostShim) {
  host_.fail(Error(ErrorCode::kShimLost, "gone"));
  auto loop = make();

  const auto outcome = loop.run(host_.silent_fd());

  ASSERT_FALSE(outcome.has_value());
  EXPECT_EQ(outcome.error().code(), ErrorCode::kShimLost);
}

}  // namespace
}  // namespace accel::launcher::launch_loop_test
