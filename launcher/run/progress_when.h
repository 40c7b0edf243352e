// ProgressWhen: when accel-launch shows a progress line.
#pragma once

#include <string_view>

namespace accel::launcher {

// kAuto: once a worker has reported a step, and while no worker draws a line of its own.
enum class ProgressWhen { kOff, kAuto, kOn };

inline constexpr std::string_view kProgressChoices = "auto,on,off";
inline constexpr const char* kProgressVariable = "ACCEL_PROGRESS_LINE";

}  // namespace accel::launcher
