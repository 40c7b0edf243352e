// LaunchLoop: what accel-launch does while a job runs.
//
// Turns the signals of the launcher into requests to the shim, and the events of the shim into
// lines for the user. All decisions are in on_signal() and on_event(), which a test calls with a
// fake WorkerHost; run() only waits and passes on.
//
//   SIGINT              stop(interrupt); the second one stop(kill); exit status 130, by the signal itself
//                       after a Ctrl-C, as a shell ends its loop only when what it waits for died of it
//   SIGTERM SIGHUP USR1 stop(terminate); the second one stop(kill); exit status 143, after
//                       SIGHUP 129, and 85 when every rank has saved
//   SIGTSTP             workers are stopped, then the launcher stops itself; SIGCONT resumes both
//   SIGQUIT             all ranks are asked for their stacks
//   SIGWINCH            the new window size is passed on
//
// With a ProgressLine it shows where the workers are (progress_display.h), until the job is asked to stop.
//
// Threads:  one thread, which must be the only one (the signals are blocked in it).
#pragma once

#include <csignal>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <boost/asio/io_context.hpp>

#include <accel/result.h>

#include "launcher/run/notice_queue.h"
#include "launcher/run/progress_display.h"
#include "runtime/supervisor/owner/worker_host.h"

namespace accel::launcher {

// A signal as signalfd gives it.
struct ReceivedSignal {
  int number = 0;
  bool is_from_terminal = false;  // the kernel sent it to the whole foreground group
};

struct LaunchLoopOptions {
  bool shares_terminal = false;  // the worker is in our foreground group
  int num_workers = 1;           // for what is told of a restart, as the next
  int max_restarts = 0;
  std::function<void(const std::string&)> notice;  // a line for the user; must not wait for him
  NoticeQueue* notices = nullptr;                  // written out while the loop waits; may be none
  // Who watches the job besides: told of each event of the shim before anything else, and of requests to stop.
  std::function<void(const supervisor::HostEvent&)> on_event;
  std::function<void()> on_stop_asked;
  boost::asio::io_context* beside = nullptr;  // its handlers run while the loop waits; may be none
  // At most so long from the first stop signal to SIGKILL; default: as long as the job says.
  std::function<supervisor::Milliseconds(int signal)> grace;
  std::function<void()> stop_self;  // SIGTSTP: default is raise(SIGSTOP)
  std::function<std::optional<supervisor::WindowSize>()> window_size;  // default asks the terminal
  ProgressDisplay::Options progress;                                   // its notices: the above
};

class LaunchLoop {
 public:
  LaunchLoop(supervisor::WorkerHost& host, LaunchLoopOptions options);

  void on_signal(const ReceivedSignal& signal);
  void on_event(const supervisor::HostEvent& event);

  // Set once the job has ended.
  [[nodiscard]] const std::optional<supervisor::JobOutcome>& outcome() const { return outcome_; }

  // True: a Ctrl-C at the terminal ended the job.
  [[nodiscard]] bool is_interrupted() const;

  // Waits for signals on `signal_fd` and events until the job has ended.
  // Errors  those of WorkerHost::next_event().
  [[nodiscard]] Result<supervisor::JobOutcome> run(int signal_fd);

 private:
  void ask_to_stop(supervisor::StopMode mode, const ReceivedSignal& signal);
  void suspend();
  Result<void> wait(int signal_fd);
  Result<void> wait_beside(int signal_fd, boost::asio::io_context& context);
  Result<void> handle(int signal_fd, bool has_signal, bool has_room);
  Result<void> take_events(int signal_fd);
  void take_signals(int signal_fd);
  void tell(const std::string& text);

  supervisor::WorkerHost& host_;
  LaunchLoopOptions options_;
  std::optional<int> sharing_terminal_;  // the generation whose worker is in our foreground group
  bool has_ctrl_c_ = false;
  int num_stops_ = 0;
  std::set<std::string, std::less<>>
      told_;  // the outcome repeats them, for owners who only read that
  std::optional<supervisor::JobOutcome> outcome_;
  ProgressDisplay progress_;
};

// The signals above (but those that were ignored before: nohup), blocked and readable from fd() for the
// life of this value. After it they act as before: a Ctrl-C ends a launcher that only has its report
// left to write, to a console that does not take it. Those that came and were not read are dropped.
class TakenSignals {
 public:
  // Call it before anything is started.
  [[nodiscard]] static Result<TakenSignals> take();
  ~TakenSignals();
  TakenSignals(TakenSignals&& other) noexcept = default;
  TakenSignals& operator=(TakenSignals&&) = delete;

  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

 private:
  TakenSignals(UniqueFd fd, const sigset_t& before) : fd_(std::move(fd)), before_(before) {}

  UniqueFd fd_;
  sigset_t before_;
};

}  // namespace accel::launcher
