#include "runtime/json_argument.h"

#include <cstddef>
#include <cstdint>

namespace accel {
namespace {

constexpr std::string_view kSpaces = " \t\r\n";

// -1: no digit of base64.
int digit_of(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+' || c == '-') return 62;
  if (c == '/' || c == '_') return 63;
  return -1;
}

std::optional<std::string> decode_base64(std::string_view text) {
  constexpr int kBitsEach = 6;
  constexpr std::size_t kMostPadding = 2;
  for (std::size_t i = 0; i < kMostPadding && text.ends_with('='); ++i) text.remove_suffix(1);
  if (text.size() % 4 == 1) return std::nullopt;
  std::string bytes;
  std::uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : text) {
    const int digit = digit_of(c);
    if (digit < 0) return std::nullopt;
    bits = (bits << kBitsEach) | static_cast<std::uint32_t>(digit);
    num_bits += kBitsEach;
    if (num_bits < 8) continue;
    num_bits -= 8;
    bytes += static_cast<char>((bits >> num_bits) & 0xFF);
  }
  return bytes;
}

bool begins_object(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpaces);
  return begin != std::string_view::npos && text[begin] == '{';
}

}  // namespace

std::optional<std::string> json_in_place_of_path(std::string_view argument) {
  if (begins_object(argument)) return std::string(argument);
  std::optional<std::string> decoded = decode_base64(argument);
  if (!decoded || !begins_object(*decoded)) return std::nullopt;
  // Short names of files are base64, too.
  if ((*decoded)[decoded->find_last_not_of(kSpaces)] != '}') return std::nullopt;
  return decoded;
}

}  // namespace accel
