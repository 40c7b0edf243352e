// Dialogue: the questionnaire held with a person, or a script, by lines; choices also by menus.
//
// Threads:  reads and writes the two streams; no state beside them.
#pragma once

#include <cstddef>
#include <cstdio>
#include <functional>
#include <vector>

#include <accel/result.h>

#include "launcher/config/questionnaire/answers.h"
#include "launcher/config/questionnaire/menu_terminal.h"

namespace accel::launcher {

// Shows the rows, with this one marked, and waits until one is chosen. kNone: the question is asked by lines.
using MenuChooser =
    std::function<MenuOutcome(const std::vector<MenuRow>& rows, std::size_t position)>;

// Asks until everything is answered; an answer that cannot be used is asked for again. Without `choose` all is asked by
// lines. Errors  kUsage: `in` ended before, or a line has 4096 bytes or more.
[[nodiscard]] Result<Answers> hold_dialogue(std::FILE* in,
                                            std::FILE* out,
                                            const MenuChooser& choose = {});

}  // namespace accel::launcher
