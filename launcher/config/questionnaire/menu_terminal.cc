// Signals are read through a descriptor beside the keys, so that no handler runs: what is done about them is done in the
// loop. A signal that has come is raised again after the terminal has its settings back and the signal its place in the
// mask; when that returns (it was a stop that has ended, or is ignored), the menu goes on.

#include "launcher/config/questionnaire/menu_terminal.h"

#include <cerrno>
#include <csignal>
#include <optional>
#include <string>
#include <string_view>

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include "runtime/unique_fd.h"

namespace accel::launcher {
namespace {

constexpr std::string_view kHint = "arrows or digits, then Enter\n";
constexpr std::string_view kHideCursor = "\x1b[?25l";
constexpr std::string_view kShowCursor = "\x1b[?25h";
constexpr std::string_view kEraseLine = "\r\x1b[K";
constexpr std::string_view kEraseBelow = "\x1b[J";
constexpr std::string_view kGreen = "\x1b[32m";
constexpr std::string_view kPlain = "\x1b[0m";

std::string lines_up(std::size_t number) {
  return "\x1b[" + std::to_string(number) + "A";
}

WindowSize window_of(int terminal) {
  winsize size{};
  if (::ioctl(terminal, TIOCGWINSZ, &size) != 0) return {};
  return {.columns = size.ws_col, .lines = size.ws_row};
}

sigset_t watched_signals() {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT})
    ::sigaddset(&signals, signal);
  return signals;
}

// While it lives, the signals come through a descriptor.
class SignalInbox {
 public:
  SignalInbox() : signals_(watched_signals()), fd_(::signalfd(-1, &signals_, SFD_CLOEXEC)) {
    block();
  }
  ~SignalInbox() { unblock(); }
  SignalInbox(const SignalInbox&) = delete;
  SignalInbox& operator=(const SignalInbox&) = delete;

  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  void block() { ::pthread_sigmask(SIG_BLOCK, &signals_, &before_); }
  void unblock() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  // 0: none.
  [[nodiscard]] int take() const {
    signalfd_siginfo info{};
    return ::read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo)
                                                                : 0;
  }

 private:
  sigset_t signals_;
  sigset_t before_{};
  UniqueFd fd_;
};

// While it is entered, the terminal hands out each key at once and shows none of them. Ctrl-C and Ctrl-Z are signals still.
class KeyMode {
 public:
  explicit KeyMode(int terminal)
      : terminal_(terminal), is_terminal_(::tcgetattr(terminal, &before_) == 0) {}
  ~KeyMode() { leave(); }
  KeyMode(const KeyMode&) = delete;
  KeyMode& operator=(const KeyMode&) = delete;

  [[nodiscard]] bool is_terminal() const noexcept { return is_terminal_; }
  void enter() {
    termios keys = before_;
    keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    keys.c_cc[VMIN] = 1;
    keys.c_cc[VTIME] = 0;
    is_entered_ = ::tcsetattr(terminal_, TCSADRAIN, &keys) == 0;
  }
  void leave() {
    if (is_entered_) ::tcsetattr(terminal_, TCSADRAIN, &before_);
    is_entered_ = false;
  }

 private:
  int terminal_;
  termios before_{};
  bool is_terminal_;
  bool is_entered_ = false;
};

class MenuSession {
 public:
  MenuSession(int in, int out, const std::vector<MenuRow>& rows, std::size_t position)
      : in_(in), out_(out), menu_(rows, position), mode_(in) {}

  MenuOutcome run() {
    if (!mode_.is_terminal() || !menu_fits(menu_.rows(), window_of(out_)) || inbox_.fd() < 0)
      return {};
    open();
    while (true) {
      pollfd fds[] = {{inbox_.fd(), POLLIN, 0}, {in_, POLLIN, 0}};
      if (::poll(fds, 2, -1) < 0 && errno != EINTR) return close(MenuEnd::kLeft);
      if (fds[0].revents != 0) {
        step_aside(inbox_.take());
      } else if (fds[1].revents != 0) {
        if (const auto end = read_key()) return close(*end);
      }
    }
  }

 private:
  void open() {
    mode_.enter();
    write(std::string(kHideCursor) + std::string(kHint));
    draw();
  }

  MenuOutcome close(MenuEnd end) {
    const std::string name = menu_.rows()[menu_.position()].name();
    write(lines_up(menu_.rows().size() + 1) + "\r" + std::string(kEraseBelow) +
          std::string(kShowCursor) + "> " + (end == MenuEnd::kChosen ? name : "") + "\n");
    mode_.leave();
    if (end == MenuEnd::kLeft) return {.kind = MenuOutcome::Kind::kEnded};
    return {.kind = MenuOutcome::Kind::kRow, .row = menu_.position()};
  }

  // The cursor is left in the line below the last row.
  void draw() {
    const auto lines = menu_.lines(window_of(out_).columns);
    std::string text;
    for (std::size_t i = 0; i < lines.size(); ++i) {
      text += kEraseLine;
      text +=
          i == menu_.position() ? std::string(kGreen) + lines[i] + std::string(kPlain) : lines[i];
      text += "\n";
    }
    write(text);
  }

  // By whole keys; what was typed after the choice is left for the next question.
  std::optional<MenuEnd> read_key() {
    char byte = 0;
    const ssize_t size = ::read(in_, &byte, 1);
    if (size < 0 && errno == EINTR) return std::nullopt;
    if (size <= 0) return MenuEnd::kLeft;
    const auto key = decoder_.take(byte);
    if (!key) return std::nullopt;
    const auto end = menu_.press(*key);
    if (!end) {
      write(lines_up(menu_.rows().size()));
      draw();
    }
    return end;
  }

  // The signal does what it would have done; where the program goes on after it, so does the menu.
  void step_aside(int signal) {
    if (signal == 0) return;
    if (signal != SIGCONT) {
      write(kShowCursor);
      mode_.leave();
      inbox_.unblock();
      ::raise(signal);
      inbox_.block();
    }
    open();
  }

  // A terminal that is gone is noticed by the next read.
  void write(std::string_view text) const {
    while (!text.empty()) {
      const ssize_t size = ::write(out_, text.data(), text.size());
      if (size < 0 && errno != EINTR) return;
      if (size > 0) text.remove_prefix(static_cast<std::size_t>(size));
    }
  }

  int in_;
  int out_;
  Menu menu_;
  KeyDecoder decoder_;
  SignalInbox inbox_;
  KeyMode mode_;
};

}  // namespace

MenuOutcome choose_on_terminal(int in,
                               int out,
                               const std::vector<MenuRow>& rows,
                               std::size_t position) {
  return MenuSession(in, out, rows, position).run();
}

}  // namespace accel::launcher
