#include "runtime/supervisor/logs/stdin_pump.h"

#include <cerrno>
#include <cstdint>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

#include <poll.h>
#include <sys/eventfd.h>
#include <termios.h>
#include <unistd.h>

#include "runtime/supervisor/kernel/exhausted.h"
#include "runtime/system.h"

namespace accel::supervisor {
namespace {

constexpr int kBackgroundWaitMs = 100;  // how soon input is looked at again while it is the shell's

char end_of_file_character(int pseudo_terminal) {
  termios mode = {};
  if (::tcgetattr(pseudo_terminal, &mode) != 0) return 4;
  return static_cast<char>(mode.c_cc[VEOF]);
}

}  // namespace

bool is_foreground_stat(std::string_view stat) {
  // pid (name with anything in it) state ppid pgrp session tty_nr tpgid ...
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string_view::npos) return false;
  std::istringstream fields{std::string(stat.substr(name_end + 1))};
  char state = 0;
  long parent = 0;
  long group = 0;
  long session = 0;
  long terminal = 0;
  long foreground_group = 0;
  fields >> state >> parent >> group >> session >> terminal >> foreground_group;
  return fields && group == foreground_group;
}

Result<std::shared_ptr<StdinPump>> StdinPump::start(int terminal, pid_t owner) {
  constexpr const char* kWhat = "input cannot be passed on to a worker";
  auto pump = std::make_shared<StdinPump>(terminal, owner);
  if (!pump->wake_) return exhausted_error(kWhat, errno);
  try {
    pump->thread_.start("accel-stdin", [pump] { pump->run(); });
  } catch (const std::system_error& error) {
    return exhausted_error(kWhat, error.code().value());
  }
  return pump;
}

StdinPump::StdinPump(int terminal, pid_t owner)
    : terminal_(terminal), owner_(owner), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void StdinPump::feed(UniqueFd target, Target kind) {
  {
    const std::lock_guard lock(mutex_);
    target_ = std::move(target);
    kind_ = kind;
  }
  ::eventfd_write(wake_.get(), 1);
}

void StdinPump::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
    target_.reset();
  }
  ::eventfd_write(wake_.get(), 1);
}

void StdinPump::run() {
  char buffer[4096];
  while (wait_for_input()) {
    const ssize_t got = ::read(terminal_, buffer, sizeof buffer);
    if (got > 0) {
      pass_on({buffer, static_cast<std::size_t>(got)});
    } else if (got == 0) {
      pass_on_end();
    } else if (errno != EINTR && errno != EAGAIN) {
      return;  // the terminal has hung up
    }
  }
}

// False once stopped, or when the terminal is gone.
bool StdinPump::wait_for_input() {
  for (;;) {
    bool has_target = false;
    {
      const std::lock_guard lock(mutex_);
      if (is_stopped_) return false;
      has_target = static_cast<bool>(target_);
    }
    pollfd waiting[2] = {{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                         {.fd = has_target ? terminal_ : -1, .events = POLLIN, .revents = 0}};
    ::poll(waiting, 2, -1);
    std::uint64_t ignored = 0;
    if (waiting[0].revents != 0) {
      ::eventfd_read(wake_.get(), &ignored);
    } else if ((waiting[1].revents & POLLIN) != 0) {
      if (owner_is_in_foreground()) return true;
      ::poll(waiting, 1, kBackgroundWaitMs);
    } else if (waiting[1].revents != 0) {
      return false;
    }
  }
}

void StdinPump::pass_on(std::string_view bytes) {
  write_to_target(bytes);
  // Ctrl-D after some characters sends them without a newline; a program that reads lines from its
  // pseudo terminal must get them as well.
  if (bytes.back() != '\n' && is_line_mode()) {
    const std::lock_guard lock(mutex_);
    if (target_ && kind_ == Target::kPseudoTerminal) {
      const char end = end_of_file_character(target_.get());
      (void)!::write(target_.get(), &end, 1);
    }
  }
}

void StdinPump::pass_on_end() {
  const std::lock_guard lock(mutex_);
  if (!target_) return;
  if (kind_ == Target::kPipe) {
    target_.reset();
  } else {
    const char end = end_of_file_character(target_.get());
    (void)!::write(target_.get(), &end, 1);
  }
}

// Waits for room; gives up when the target is gone or replaced.
void StdinPump::write_to_target(std::string_view bytes) {
  while (!bytes.empty()) {
    pollfd waiting[2] = {{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                         {.fd = -1, .events = POLLOUT, .revents = 0}};
    {
      const std::lock_guard lock(mutex_);
      if (!target_) return;
      const ssize_t written = ::write(target_.get(), bytes.data(), bytes.size());
      if (written > 0) bytes.remove_prefix(static_cast<std::size_t>(written));
      if (written < 0 && errno != EAGAIN && errno != EINTR) {
        target_.reset();
        return;
      }
      waiting[1].fd = ::dup(target_.get());
    }
    const UniqueFd room(waiting[1].fd);
    if (bytes.empty()) return;
    ::poll(waiting, 2, -1);
    if (waiting[0].revents != 0) return;
  }
}

bool StdinPump::owner_is_in_foreground() const {
  if (owner_ == 0) return true;
  const auto stat = real_system().read_file("/proc/" + std::to_string(owner_) + "/stat", 4096);
  return stat && is_foreground_stat(*stat);
}

bool StdinPump::is_line_mode() const {
  termios mode = {};
  return ::tcgetattr(terminal_, &mode) == 0 && (mode.c_lflag & ICANON) != 0;
}

}  // namespace accel::supervisor
