// Signals are read through a descriptor beside the keys, as config's menus do (menu_terminal.cc): what is done about them is done
// in the loop, where the terminal can be given back first.
//
// A line is erased before it is written, not after it: behind the last column of a terminal the cursor stays on that column, and
// erasing to the end of the line would take its letter. Lines do not wrap (mode 7): a letter that is wider there than here
// does not move the rest of the screen.

#include "launcher/cluster/agents/top_terminal.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <utility>

#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/text/terminal_text.h"
#include "runtime/own_environment.h"
#include "runtime/write_all.h"

namespace accel::cluster {
namespace {

constexpr std::string_view kEnterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l";
constexpr std::string_view kLeaveScreen = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";
constexpr std::array kFaults = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};

sigset_t top_signals() {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH})
    ::sigaddset(&signals, signal);
  return signals;
}

void write_to_screen(std::string_view text) {
  (void)write_all(STDOUT_FILENO, text);  // a terminal that is gone is noticed by the next read
}

// What a fault gives back: the settings of a terminal that is entered.
std::atomic<const termios*> settings_before{nullptr};
std::array<struct sigaction, kFaults.size()> actions_before;

// Only functions that a handler may call. The fault comes again and meets the action of before.
void give_back_after_fault(int signal, siginfo_t* info, void*) {
  if (const termios* const before = settings_before.exchange(nullptr)) {
    (void)!::write(STDOUT_FILENO, kLeaveScreen.data(), kLeaveScreen.size());
    ::tcsetattr(STDIN_FILENO, TCSANOW, before);
  }
  for (std::size_t i = 0; i < kFaults.size(); ++i) {
    if (kFaults[i] == signal) ::sigaction(signal, &actions_before[i], nullptr);
  }
  if (info->si_code <= 0) ::raise(signal);  // somebody sent it: it does not come again by itself
}

void watch_faults() {
  struct sigaction action = {};
  action.sa_sigaction = give_back_after_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  for (std::size_t i = 0; i < kFaults.size(); ++i)
    ::sigaction(kFaults[i], &action, &actions_before[i]);
}

// 0: it cannot be started.
pid_t start_accel(std::vector<std::string> words) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t none;
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t child = 0;
  const int failure =
      ::posix_spawn(&child, "/proc/self/exe", nullptr, &attributes, argv.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  return failure == 0 ? child : 0;
}

// Of a process that has ended or soon does.
int wait_status_of(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

// It does what it does otherwise; returns when that was a stop which is over, or nothing.
void let_through(int signal) {
  sigset_t one;
  ::sigemptyset(&one);
  ::sigaddset(&one, signal);
  ::raise(signal);
  ::pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  ::pthread_sigmask(SIG_BLOCK, &one, nullptr);
}

// A Ctrl-Z reaches both; the fg or bg that follows goes on with both. The others are the child's: Ctrl-C ends it alone.
void take_signal_beside(pid_t child, int signal) {
  if (signal == SIGTSTP) {
    ::raise(SIGSTOP);
    ::kill(child, SIGCONT);
  } else if (signal == SIGTERM || signal == SIGHUP) {
    ::kill(child, signal);
    (void)wait_status_of(child);
    let_through(signal);
  }
}

}  // namespace

void block_top_signals() {
  const sigset_t set = top_signals();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

void unblock_top_signals() {
  const sigset_t set = top_signals();
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

TopTerminal::TopTerminal()
    : signals_(top_signals()),
      signal_fd_(::signalfd(-1, &signals_, SFD_CLOEXEC | SFD_NONBLOCK)),
      is_terminal_(::isatty(STDOUT_FILENO) == 1 && ::tcgetattr(STDIN_FILENO, &before_) == 0) {}

std::string TopTerminal::objection() const {
  if (!is_terminal_) return "accel top needs a terminal for its screen and its keys";
  const std::string kind = value_in(own_environment(), "TERM");
  if (kind.empty() || kind == "dumb")
    return "accel top needs a terminal with a cursor, and TERM is " +
           (kind.empty() ? "not set" : "'" + kind + "'");
  return "";
}

launcher::TopWindow TopTerminal::window() const {
  winsize size{};
  launcher::TopWindow window;
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0)
    window = {.columns = size.ws_col, .rows = size.ws_row};
  window.has_styles = launcher::wants_colour(own_environment());
  return window;
}

void TopTerminal::enter() {
  termios keys = before_;
  keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  keys.c_cc[VMIN] = 1;
  keys.c_cc[VTIME] = 0;
  if (!std::exchange(is_entered_, true)) watch_faults();
  settings_before = &before_;
  ::tcsetattr(STDIN_FILENO, TCSADRAIN, &keys);
  write_to_screen(kEnterScreen);
  forget();
}

void TopTerminal::leave() {
  if (!std::exchange(is_entered_, false)) return;
  write_to_screen(kLeaveScreen);
  ::tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
  settings_before = nullptr;
  for (std::size_t i = 0; i < kFaults.size(); ++i)
    ::sigaction(kFaults[i], &actions_before[i], nullptr);
}

void TopTerminal::draw(const std::vector<std::string>& lines, const launcher::TopWindow& window) {
  const bool is_all = drawn_.size() != lines.size() || drawn_window_.columns != window.columns ||
                      drawn_window_.rows != window.rows;
  std::string frame = is_all ? "\x1b[H\x1b[2J" : "";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (!is_all && lines[i] == drawn_[i]) continue;
    frame += "\x1b[" + std::to_string(i + 1) + ";1H\x1b[K" + lines[i];
  }
  drawn_ = lines;
  drawn_window_ = window;
  if (!frame.empty()) write_to_screen(frame);
}

// The screen is entered after the last of them: what ends a program that is stopped comes with the SIGCONT, when the terminal is
// the shell's. A SIGCONT alone comes after a SIGSTOP, and the shell has taken the terminal meanwhile.
void TopTerminal::take_signals() {
  const bool was_entered = is_entered_;
  bool is_disturbed = false;
  signalfd_siginfo info{};
  while (::read(signal_fd_.get(), &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGWINCH) continue;  // it is drawn anew in any case
    is_disturbed = true;
    if (signal == SIGCONT) continue;
    leave();
    let_through(signal);
  }
  if (is_disturbed && was_entered) enter();
}

bool TopTerminal::run_beside(std::vector<std::string> words) {
  leave();
  const pid_t child = start_accel(std::move(words));
  if (child == 0) return false;
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  while (true) {
    pollfd fds[] = {{process.get(), POLLIN, 0}, {signal_fd_.get(), POLLIN, 0}};
    if (::poll(fds, std::size(fds), -1) < 0 && errno != EINTR) break;
    if (fds[0].revents != 0) break;
    signalfd_siginfo info{};
    if (fds[1].revents != 0 && ::read(signal_fd_.get(), &info, sizeof info) == sizeof info)
      take_signal_beside(child, static_cast<int>(info.ssi_signo));
  }
  const int status = wait_status_of(child);
  sigset_t pressed;  // while it ran: not meant for us
  ::sigemptyset(&pressed);
  for (const int signal : {SIGINT, SIGQUIT, SIGTSTP, SIGCONT}) ::sigaddset(&pressed, signal);
  const timespec at_once{};
  while (::sigtimedwait(&pressed, nullptr, &at_once) > 0) {
  }
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGINT;
}

}  // namespace accel::cluster
