// FirstLine: messages of libraries that append stack traces to them.
//
// Threads:  pure.
#pragma once

#include <string>
#include <string_view>

namespace accel {

// Up to the first newline; without one the whole text.
[[nodiscard]] inline std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

}  // namespace accel
