// Checksums by tables of 256 entries: CRC-32C of TFRecord, CRC-32 and Adler-32 of PNG.
//
// Cost:     about 2 ns a byte; entries of a log are some hundred bytes.
// Source:   RFC 3720 appendix B.4 (Castagnoli), RFC 2083 appendix 15, RFC 1950 section 9; tests/unit/tracking/checksum_test.cc.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace accel::tracking {

// polynomial: reflected.
constexpr std::array<std::uint32_t, 256> crc_table(std::uint32_t polynomial) {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? polynomial : 0);
    table[byte] = value;
  }
  return table;
}

inline constexpr auto kCrc32Table = crc_table(0xEDB88320U);
inline constexpr auto kCrc32cTable = crc_table(0x82F63B78U);

constexpr std::uint32_t crc_of(std::string_view bytes,
                               const std::array<std::uint32_t, 256>& table) {
  std::uint32_t crc = ~0U;
  for (const char byte : bytes)
    crc = (crc >> 8) ^ table[(crc ^ static_cast<unsigned char>(byte)) & 0xFF];
  return ~crc;
}

constexpr std::uint32_t crc32_of(std::string_view bytes) {
  return crc_of(bytes, kCrc32Table);
}
constexpr std::uint32_t crc32c_of(std::string_view bytes) {
  return crc_of(bytes, kCrc32cTable);
}

constexpr std::uint32_t adler32_of(std::string_view bytes) {
  constexpr std::uint32_t kLargestPrime = 65521;  // below 2^16
  std::uint32_t a = 1;
  std::uint32_t b = 0;
  for (const char byte : bytes) {
    a = (a + static_cast<unsigned char>(byte)) % kLargestPrime;
    b = (b + a) % kLargestPrime;
  }
  return b << 16 | a;
}

}  // namespace accel::tracking
