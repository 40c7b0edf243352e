// LetterCase: a text in small or in capital letters. Bytes beyond ASCII stay as they are, in the C locale, which accel never
// leaves.
//
// Threads:  pure functions.
#pragma once

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>

namespace accel {

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

[[nodiscard]] inline bool is_equal_but_for_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

}  // namespace accel
