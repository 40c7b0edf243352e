// Dialogue: the questionnaire held with a person, or a script, by lines.
//
// Threads:  reads and writes the two streams; no state beside them.
#pragma once

#include <cstdio>

#include <accel/result.h>

#include "launcher/questionnaire/answers.h"

namespace accel::launcher {

// Asks until everything is answered; an answer that cannot be used is asked for again.
// Errors  kUsage: `in` ended before, or a line has 4096 bytes or more.
[[nodiscard]] Result<Answers> hold_dialogue(std::FILE* in, std::FILE* out);

}  // namespace accel::launcher
