// TopTerminal: the terminal of `accel top`: its whole screen, keys one by one, and the signals that reach it.
//
// The terminal has its settings, its cursor and its old screen back on every way out: leave(), SIGINT, SIGTERM, SIGHUP, SIGQUIT
// and SIGTSTP, which then do what they do otherwise, and a fault of the program (SIGSEGV, SIGABRT and their like). SIGKILL and
// SIGSTOP alone leave them; after a SIGSTOP the screen is entered anew.
//
// Threads:  one; a process has one of it. What writes into the terminal waits while a person has stopped it with Ctrl-S.
// Source:   ECMA-48; xterm's control sequences (modes 7, 25, 1049).
#pragma once

#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include <termios.h>

#include "launcher/top/top_screen.h"
#include "runtime/unique_fd.h"

namespace accel::cluster {

// Before gRPC has threads: a signal that they do not block would end the program there.
void block_top_signals();
// Of the calling thread. Requires: the terminal is left.
void unblock_top_signals();

class TopTerminal {
 public:
  TopTerminal();
  ~TopTerminal() { leave(); }
  TopTerminal(const TopTerminal&) = delete;
  TopTerminal& operator=(const TopTerminal&) = delete;

  // Why it cannot be used; empty: it can.
  [[nodiscard]] std::string objection() const;
  [[nodiscard]] launcher::TopWindow window() const;
  void enter();
  void leave();

  // Writes the lines that have changed. Requires: as many as the window has rows.
  void draw(const std::vector<std::string>& lines, const launcher::TopWindow& window);
  // The next draw() writes all of them.
  void forget() { drawn_.clear(); }

  // Readable when a signal has come.
  [[nodiscard]] int signal_fd() const noexcept { return signal_fd_.get(); }
  // They do what they do otherwise; returns when that was a stop which is over, or nothing.
  void take_signals();
  // `accel` with the words in the old screen, until it ends. True: by Ctrl-C. SIGTERM and SIGHUP end it, and then this program.
  bool run_beside(std::vector<std::string> words);

 private:
  sigset_t signals_;
  UniqueFd signal_fd_;
  termios before_{};
  bool is_terminal_;
  bool is_entered_ = false;
  std::vector<std::string> drawn_;
  launcher::TopWindow drawn_window_;
};

}  // namespace accel::cluster
