// ByteSize: numbers of bytes as people write them.
//
// Threads:  pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace accel {

// "4096", "64K", "256M", "1G", "2T": K is 1024 bytes, M 1024 K and so on; small letters do as well. std::nullopt for
// anything else, and for more than 2^63 - 1 bytes.
[[nodiscard]] std::optional<std::uint64_t> parse_byte_size(std::string_view text);

// "12 bytes", "1.5 KiB", "152.0 MiB", "3.2 GiB": one digit after the point, cut off.
[[nodiscard]] std::string byte_text(std::uint64_t bytes);

}  // namespace accel
