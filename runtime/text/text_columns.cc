#include "runtime/text/text_columns.h"

#include <cstdint>

namespace accel {
namespace {

struct Letter {
  std::size_t bytes = 1;
  std::size_t columns = 1;
};

bool is_in(std::uint32_t value, std::uint32_t first, std::uint32_t last) {
  return value >= first && value <= last;
}

std::size_t columns_of(std::uint32_t value) {
  const bool is_joined = is_in(value, 0x300, 0x36F) || is_in(value, 0x200B, 0x200F) ||
                         is_in(value, 0x202A, 0x202E) || is_in(value, 0x20D0, 0x20FF) ||
                         is_in(value, 0xFE00, 0xFE0F);
  if (is_joined) return 0;
  const bool is_wide = is_in(value, 0x1100, 0x115F) || is_in(value, 0x2E80, 0x303E) ||
                       is_in(value, 0x3041, 0xA4CF) || is_in(value, 0xAC00, 0xD7A3) ||
                       is_in(value, 0xF900, 0xFAFF) || is_in(value, 0xFE30, 0xFE6F) ||
                       is_in(value, 0xFF00, 0xFF60) || is_in(value, 0xFFE0, 0xFFE6) ||
                       is_in(value, 0x1F300, 0x1F64F) || is_in(value, 0x1F680, 0x1F6FF) ||
                       is_in(value, 0x1F900, 0x1F9FF) || is_in(value, 0x20000, 0x3FFFD);
  return is_wide ? 2 : 1;
}

// Requires: text is not empty.
Letter first_letter(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t bytes = byte(0) < 0xC0 ? 1 : byte(0) < 0xE0 ? 2 : byte(0) < 0xF0 ? 3 : 4;
  if (bytes == 1 || bytes > text.size()) return {};
  std::uint32_t value = byte(0) & (0xFFU >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) value = value << 6 | (byte(i) & 0x3FU);
  return {bytes, columns_of(value)};
}

}  // namespace

std::size_t text_columns(std::string_view text) {
  std::size_t columns = 0;
  while (!text.empty()) {
    const Letter letter = first_letter(text);
    columns += letter.columns;
    text.remove_prefix(letter.bytes);
  }
  return columns;
}

std::string fitted_columns(std::string_view text, std::size_t columns) {
  if (text_columns(text) <= columns) return std::string(text);
  if (columns == 0) return "";
  std::size_t bytes = 0;
  std::size_t taken = 0;
  while (bytes < text.size()) {
    const Letter letter = first_letter(text.substr(bytes));
    if (taken + letter.columns > columns - 1) break;
    taken += letter.columns;
    bytes += letter.bytes;
  }
  return std::string(text.substr(0, bytes)) + "~";
}

std::string padded_columns(std::string_view text, std::size_t columns) {
  std::string fitted = fitted_columns(text, columns);
  const std::size_t taken = text_columns(fitted);
  return fitted + std::string(columns > taken ? columns - taken : 0, ' ');
}

std::string right_columns(std::string_view text, std::size_t columns) {
  const std::string fitted = fitted_columns(text, columns);
  const std::size_t taken = text_columns(fitted);
  return std::string(columns > taken ? columns - taken : 0, ' ') + fitted;
}

}  // namespace accel
