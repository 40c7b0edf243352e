// json_bytes: byte strings inside JSON, without loss.
//
// Environment values, arguments and log tails are bytes, JSON strings are Unicode. Each byte
// becomes the code point of the same number, so every byte string has exactly one JSON form and
// comes back unchanged. Plain ASCII looks the same on both sides.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace accel::supervisor {

[[nodiscard]] inline std::string bytes_to_text(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      text += c;
    } else {
      text += static_cast<char>(0xC0 | (byte >> 6));
      text += static_cast<char>(0x80 | (byte & 0x3F));
    }
  }
  return text;
}

// std::nullopt when `text` (valid UTF-8) has a code point above 0xFF.
[[nodiscard]] inline std::optional<std::string> text_to_bytes(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      bytes += text[i];
      continue;
    }
    if ((lead != 0xC2 && lead != 0xC3) || i + 1 == text.size()) return std::nullopt;
    const auto next = static_cast<unsigned char>(text[++i]);
    bytes += static_cast<char>(((lead & 0x03) << 6) | (next & 0x3F));
  }
  return bytes;
}

}  // namespace accel::supervisor
