// LetterCase: a text in small or in capital letters. Those of ASCII alone: bytes beyond it stay as they are.
//
// Threads:  pure functions.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace accel {

[[nodiscard]] constexpr char lowercase(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

[[nodiscard]] constexpr char uppercase(char c) {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
}

[[nodiscard]] inline std::string lowercase(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = lowercase(c);
  return result;
}

[[nodiscard]] inline std::string uppercase(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = uppercase(c);
  return result;
}

[[nodiscard]] inline bool is_equal_but_for_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return lowercase(x) == lowercase(y);
  });
}

}  // namespace accel
