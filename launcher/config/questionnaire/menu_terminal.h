// MenuTerminal: draws a menu on a terminal and reads its keys.
//
// While a menu is open the terminal hands out keys one by one and shows neither them nor a cursor. Its settings come back
// on every way out: a choice, the end of the input, SIGINT, SIGTERM, SIGHUP and SIGQUIT, which then do what they do
// otherwise, and SIGTSTP; the menu is drawn anew when the program goes on. SIGKILL and SIGSTOP alone leave them.
//
// Threads:  one; the signals above are blocked for it while a menu is open, so it should be the program's only one.
#pragma once

#include <cstddef>
#include <vector>

#include "launcher/config/questionnaire/menu.h"

namespace accel::launcher {

struct MenuOutcome {
  enum class Kind {
    kRow,    // `row` was chosen; its name stands on the terminal instead of the menu
    kEnded,  // the input ended
    kNone,   // nothing was drawn: the window is too small, or this is no terminal
  };
  Kind kind = Kind::kNone;
  std::size_t row = 0;
};

// Blocks until a row is chosen. `in` and `out` are descriptors of one terminal. Requires: `position` is a row.
[[nodiscard]] MenuOutcome choose_on_terminal(int in,
                                             int out,
                                             const std::vector<MenuRow>& rows,
                                             std::size_t position);

}  // namespace accel::launcher
