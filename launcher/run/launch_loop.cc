#include "launcher/run/launch_loop.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <memory>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "runtime/supervisor/shim/job_record.h"
#include "runtime/supervisor/spawn/exit_error.h"
#include "runtime/supervisor/spawn/exit_report.h"
#include "runtime/unique_fd.h"

namespace accel::launcher {
namespace {

using supervisor::StopMode;

std::optional<supervisor::WindowSize> terminal_size() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return std::nullopt;
  return supervisor::WindowSize{size.ws_row, size.ws_col};
}

// "rank 1 of 4 ended with exit code 1: the loss is not a number; restart 1 of 3 in 500 ms". Error files are read at the
// end of the job alone.
std::string describe_restart(const supervisor::Restarting& restarting,
                             int num_workers,
                             int max_restarts) {
  const supervisor::WorkerExit& exit = restarting.because;
  std::string text = supervisor::error_of(exit, supervisor::rank_name(exit, num_workers)).message();
  const std::string reason = supervisor::own_reason(exit, {});
  if (!reason.empty()) text += ": " + reason;
  text += "; restart " + std::to_string(restarting.next_generation) + " of " +
          std::to_string(max_restarts);
  if (restarting.delay.count() > 0)
    text += " in " + std::to_string(restarting.delay.count()) + " ms";
  return text;
}

// A descriptor of somebody else, waited for on an io_context until it can be read. Asio makes it non-blocking.
class WaitedFd {
 public:
  WaitedFd(boost::asio::io_context& context, int fd) : descriptor_(context, fd) {}
  ~WaitedFd() { descriptor_.release(); }
  WaitedFd(const WaitedFd&) = delete;
  WaitedFd& operator=(const WaitedFd&) = delete;

  void arm() {
    if (std::exchange(state_->is_armed, true)) return;
    descriptor_.async_wait(boost::asio::posix::descriptor_base::wait_read,
                           [state = state_](const boost::system::error_code&) {
                             *state = {.is_armed = false, .is_ready = true};
                           });
  }
  bool take_ready() { return std::exchange(state_->is_ready, false); }

 private:
  struct State {
    bool is_armed = false;
    bool is_ready = false;
  };
  boost::asio::posix::stream_descriptor descriptor_;
  std::shared_ptr<State> state_ = std::make_shared<State>();  // also of a wait that was given up
};

// Can be read once `fd` can be written. A console is shared with the user's shell, so Asio may not have it: it would make it
// non-blocking for all. Empty: it cannot be waited for.
UniqueFd room_of(int fd) {
  UniqueFd room(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event writable{};
  writable.events = EPOLLOUT;
  if (!room || ::epoll_ctl(room.get(), EPOLL_CTL_ADD, fd, &writable) != 0) return {};
  return room;
}

ProgressDisplay::Options with_notices(ProgressDisplay::Options options,
                                      const NoticeQueue* notices) {
  options.notices = notices;
  return options;
}

}  // namespace

LaunchLoop::LaunchLoop(supervisor::WorkerHost& host, LaunchLoopOptions options)
    : host_(host),
      options_(std::move(options)),
      progress_(host, with_notices(options_.progress, options_.notices)) {
  if (!options_.notice) options_.notice = [](const std::string&) {};
  if (!options_.on_event) options_.on_event = [](const supervisor::HostEvent&) {};
  if (!options_.on_stop_asked) options_.on_stop_asked = [] {};
  if (!options_.stop_self) options_.stop_self = [] { ::raise(SIGSTOP); };
  if (!options_.window_size) options_.window_size = terminal_size;
}

void LaunchLoop::on_signal(const ReceivedSignal& signal) {
  switch (signal.number) {
    case SIGINT:
      return ask_to_stop(StopMode::kInterrupt, signal);
    case SIGTERM:
    case SIGHUP:
    case SIGUSR1:
      return ask_to_stop(StopMode::kTerminate, signal);
    case SIGTSTP:
      return suspend();
    case SIGCONT:
      return host_.request(supervisor::Resume{});
    case SIGQUIT:
      return host_.request(supervisor::DumpStacks{});
    case SIGWINCH:
      if (const auto size = options_.window_size()) host_.request(*size);
      return progress_.show();
    default:
      return;
  }
}

void LaunchLoop::ask_to_stop(StopMode mode, const ReceivedSignal& signal) {
  const bool is_again = ++num_stops_ > 1;
  options_.on_stop_asked();
  has_ctrl_c_ |= signal.number == SIGINT && signal.is_from_terminal;
  host_.request(supervisor::Stop{
      .mode = is_again ? StopMode::kKill : mode,
      .signal = signal.number,
      .delivered_to = signal.is_from_terminal ? sharing_terminal_ : std::nullopt,
      .grace = options_.grace ? options_.grace(signal.number) : supervisor::Milliseconds(-1)});
  progress_.end();
}

bool LaunchLoop::is_interrupted() const {
  return has_ctrl_c_ && outcome_ && outcome_->exit_code == supervisor::exit_code_after(SIGINT);
}

// The shim stops the workers while we go on to stop ourselves; whoever continues us (fg, or
// SIGCONT) continues them.
void LaunchLoop::suspend() {
  host_.request(supervisor::Suspend{});
  progress_.hide();
  options_.stop_self();
  host_.request(supervisor::Resume{});
}

void LaunchLoop::on_event(const supervisor::HostEvent& event) {
  options_.on_event(event);
  progress_.hear(event);
  if (const auto* notice = std::get_if<supervisor::Notice>(&event)) {
    told_.insert(notice->text);
    tell(notice->text);
  } else if (const auto* started = std::get_if<supervisor::GenerationStarted>(&event)) {
    if (options_.shares_terminal) sharing_terminal_ = started->generation;
  } else if (const auto* restarting = std::get_if<supervisor::Restarting>(&event)) {
    sharing_terminal_.reset();
    tell(describe_restart(*restarting, options_.num_workers, options_.max_restarts));
  } else if (const auto* outcome = std::get_if<supervisor::JobOutcome>(&event)) {
    outcome_ = *outcome;
    std::erase_if(outcome_->notices, [&](const std::string& text) { return told_.contains(text); });
  }
}

void LaunchLoop::tell(const std::string& text) {
  progress_.hide();
  options_.notice(text);
}

Result<void> LaunchLoop::take_events(int signal_fd) {
  while (!outcome_) {
    auto event = progress_.next_event();
    if (!event) return std::move(event).error();
    if (!*event) return {};
    // Workers of which it tells may not have been there yet when a signal came that is still to be read.
    take_signals(signal_fd);
    on_event(**event);
  }
  return {};
}

void LaunchLoop::take_signals(int signal_fd) {
  signalfd_siginfo info{};
  while (::read(signal_fd, &info, sizeof info) == sizeof info) {
    on_signal({.number = static_cast<int>(info.ssi_signo),
               .is_from_terminal = info.ssi_code == SI_KERNEL});
  }
}

Result<supervisor::JobOutcome> LaunchLoop::run(int signal_fd) {
  const auto waited =
      options_.beside == nullptr ? wait(signal_fd) : wait_beside(signal_fd, *options_.beside);
  if (!waited) return waited.error();
  return *outcome_;
}

Result<void> LaunchLoop::handle(int signal_fd, bool has_signal, bool has_room) {
  if (has_signal) take_signals(signal_fd);
  if (has_room) options_.notices->write_some();
  if (auto taken = take_events(signal_fd); !taken) return taken;
  progress_.look();
  return {};
}

Result<void> LaunchLoop::wait(int signal_fd) {
  while (!outcome_) {
    const int console = options_.notices != nullptr ? options_.notices->waiting_fd() : -1;
    pollfd fds[] = {{signal_fd, POLLIN, 0}, {host_.event_fd(), POLLIN, 0}, {console, POLLOUT, 0}};
    if (::poll(fds, std::size(fds), progress_.milliseconds_to_look()) < 0 && errno != EINTR) {
      return Error(ErrorCode::kInternal, "cannot wait for events: " + errno_text(errno));
    }
    auto handled = handle(signal_fd, fds[0].revents != 0, fds[2].revents != 0);
    if (!handled) return handled;
  }
  return {};
}

// The same, with handlers of `context` in between.
Result<void> LaunchLoop::wait_beside(int signal_fd, boost::asio::io_context& context) {
  WaitedFd signals(context, signal_fd);
  WaitedFd events(context, host_.event_fd());
  UniqueFd room;  // outlives `console`
  std::optional<WaitedFd> console;
  while (!outcome_) {
    const int waiting = options_.notices != nullptr ? options_.notices->waiting_fd() : -1;
    if (waiting >= 0 && !console && (room = room_of(waiting))) console.emplace(context, room.get());
    if (waiting < 0) console.reset();
    signals.arm();
    events.arm();
    if (console) console->arm();
    context.restart();
    if (const int left = progress_.milliseconds_to_look(); left >= 0) {
      context.run_one_for(std::chrono::milliseconds(left));
    } else {
      context.run_one();
    }
    const bool has_room = console && console->take_ready();
    events.take_ready();
    auto handled = handle(signal_fd, signals.take_ready(), has_room);
    if (!handled) return handled;
  }
  return {};
}

Result<TakenSignals> TakenSignals::take() {
  sigset_t set;
  sigset_t before;
  ::sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGTSTP, SIGCONT, SIGQUIT, SIGWINCH}) {
    struct sigaction current {};
    ::sigaction(signal, nullptr, &current);
    if (current.sa_handler != SIG_IGN) ::sigaddset(&set, signal);
  }
  ::sigprocmask(SIG_BLOCK, &set, &before);
  UniqueFd fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return Error(ErrorCode::kInternal, "cannot make a signalfd: " + errno_text(errno));
  return TakenSignals(std::move(fd), before);
}

TakenSignals::~TakenSignals() {
  if (!fd_) return;
  signalfd_siginfo info{};
  while (::read(fd_.get(), &info, sizeof info) == sizeof info) {
  }
  ::sigprocmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace accel::launcher
