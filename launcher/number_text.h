// NumberText: a number that is all of a text.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace accel::launcher {

// std::nullopt for anything that is not written as a Number, out of its range, or followed by more. Fractions may be
// infinite or no number ("inf", "nan").
template <typename Number>
[[nodiscard]] std::optional<Number> number_of(std::string_view text) {
  Number number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace accel::launcher
