// SecondsText: durations in messages.
//
// Threads:  pure.
#pragma once

#include <chrono>
#include <string>

namespace accel {

// "31 s", "3.1 s", "0.05 s": tenths, below one second thousandths, and no zeros at the end. Rounded down.
[[nodiscard]] inline std::string seconds_text(std::chrono::nanoseconds time) {
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
  std::string text = std::to_string(milliseconds / 1000);
  const std::string thousandths = std::to_string(1000 + milliseconds % 1000).substr(1);
  const std::string decimals = milliseconds < 1000 ? thousandths : thousandths.substr(0, 1);
  const auto last = decimals.find_last_not_of('0');
  if (last != std::string::npos) text += "." + decimals.substr(0, last + 1);
  return text + " s";
}

}  // namespace accel
