// Timing: how often the launchers of several machines exchange the board, and after which silence they act.
//
// Threads:  constants and pure functions.
// Source:   tests/unit/launcher/machines/timing_test.cc.
#pragma once

#include <string>

#include "runtime/clock.h"

namespace accel::launcher {

// Silence of a launcher, until its machine is lost; of machine 0, until it is gone.
inline constexpr Duration kLostAfter = std::chrono::seconds(5);

// Between two exchanges of a launcher. Shorter than kLongestLook with room for the exchange itself, and
// so short that one that is late, or lost on the way, leaves four others before kLostAfter.
inline constexpr Duration kLongestTick = std::chrono::milliseconds(800);

// What is longer of a pause between two looks of machine 0 is its own: it was stopped, or the machine
// was busy, and nobody is silent for it.
inline constexpr Duration kLongestLook = std::chrono::seconds(1);

// A launcher that its user has stopped (Ctrl-Z) says so, and then nothing: whether it lives is not known.
// Long enough for a look at something else, and no more than an hour of idle machines when nobody comes
// back, or when the machine died meanwhile.
inline constexpr Duration kSuspendedLimit = std::chrono::hours(1);

// From the end of one exchange to the next. More machines ask less often: the store has one thread.
[[nodiscard]] Duration tick_pause(int num_machines, bool is_running);

}  // namespace accel::launcher
