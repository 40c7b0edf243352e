// NumberText: a number that is all of a text.
#pragma once

#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "runtime/trimmed.h"

namespace accel {

// std::nullopt for anything that is not written as a Number, out of its range, or followed by more. Fractions may be
// infinite or no number ("inf", "nan").
template <typename Number>
[[nodiscard]] std::optional<Number> number_of(std::string_view text) {
  Number number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// "12", not "" or "-1".
[[nodiscard]] constexpr bool is_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// As number_of(), with blanks around the number and a plus before it.
template <typename Number>
[[nodiscard]] std::optional<Number> signed_number(std::string_view text) {
  text = trimmed(text, " \t\r\n");
  if (text.size() > 1 && text.front() == '+' && text[1] != '-') text.remove_prefix(1);
  return number_of<Number>(text);
}

inline constexpr std::string_view kTypedBlanks = " \t\n\v\f\r";

// As number_of(), for what a person typed: with what the peers' int() and float() take, blanks around the number, a plus
// before it, and single underscores between its digits.
template <typename Number>
[[nodiscard]] std::optional<Number> typed_number(std::string_view text) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  text = trimmed(text, kTypedBlanks);
  if (text.starts_with('+') && text.size() > 1 && (is_digit(text[1]) || text[1] == '.'))
    text.remove_prefix(1);
  std::string digits;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool is_between =
        i > 0 && i + 1 < text.size() && is_digit(text[i - 1]) && is_digit(text[i + 1]);
    if (text[i] != '_' || !is_between) digits += text[i];
  }
  return number_of<Number>(digits);
}

}  // namespace accel
