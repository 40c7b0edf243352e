// PseudoTerminal: what rank 0 gets in place of the owner's terminal, so that isatty() says true.
//
// The owner's own terminal stays as it is: it edits lines, echoes and makes newlines; its Ctrl-C
// and Ctrl-Z reach the launcher. So the pseudo terminal does neither echo nor translate output:
// bytes arrive as written. Programs that draw their own prompt line (readline, getpass, editors)
// are served fully only when they run alone, on the terminal itself (TerminalSetup::kForeground).
#pragma once

#include <accel/result.h>

#include "runtime/unique_fd.h"

namespace accel::supervisor {

struct WindowSize {
  int rows = 0;  // 0: unknown
  int columns = 0;
};

struct PseudoTerminal {
  UniqueFd master;  // non-blocking
  UniqueFd slave;   // for the child; not the controlling terminal of this process
};

// Errors  kSpawnFailed.
[[nodiscard]] Result<PseudoTerminal> open_pseudo_terminal(WindowSize size);

// Of the terminal `fd`; zeros when it is none.
[[nodiscard]] WindowSize window_size_of(int fd);

void set_window_size(int master, WindowSize size);

}  // namespace accel::supervisor
