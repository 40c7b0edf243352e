// LittleEndian: numbers as the bytes that zip files and pickles have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace accel::launcher {

// The lowest `width` bytes of a number, the lowest first.
[[nodiscard]] inline std::string little_endian(std::uint64_t number, std::size_t width) {
  std::string bytes;
  for (std::size_t i = 0; i < width; ++i, number >>= 8) bytes += static_cast<char>(number & 0xFF);
  return bytes;
}

}  // namespace accel::launcher
