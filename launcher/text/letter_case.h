// LetterCase: a text in small or in capital letters. Bytes beyond ASCII stay as they are, in the C locale, which accel never
// leaves.
//
// Threads:  pure functions.
#pragma once

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>

namespace accel::launcher {

[[nodiscard]] inline std::string lowercase(std::string_view text) {
  std::string result(text);
  std::ranges::transform(
      result, result.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

[[nodiscard]] inline std::string uppercase(std::string_view text) {
  std::string result(text);
  std::ranges::transform(
      result, result.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return result;
}

}  // namespace accel::launcher
