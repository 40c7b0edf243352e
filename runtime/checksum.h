// Checksums of files that others define: CRC-32 of zip archives and PNG, CRC-32C of TFRecord, Adler-32 of zlib.
//
// Threads:  pure functions.
// Cost:     about 2 ns a byte; what is large and ours has XXH3 (runtime/checkpoint/xxh3.h).
// Source:   APPNOTE.TXT 4.4.7, RFC 3720 appendix B.4 (Castagnoli), RFC 2083 appendix 15, RFC 1950 section 9;
//           tests/unit/tracking/event_message_test.cc.
#pragma once

#include <cstdint>
#include <string_view>

#include <boost/crc.hpp>

namespace accel {

template <typename Crc>
std::uint32_t crc_of(std::string_view bytes) {
  Crc crc;
  crc.process_bytes(bytes.data(), bytes.size());
  return crc.checksum();
}

inline std::uint32_t crc32_of(std::string_view bytes) {
  return crc_of<boost::crc_32_type>(bytes);
}
inline std::uint32_t crc32c_of(std::string_view bytes) {
  return crc_of<boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true>>(bytes);
}

inline std::uint32_t adler32_of(std::string_view bytes) {
  constexpr std::uint32_t kLargestPrime = 65521;  // below 2^16
  std::uint32_t a = 1;
  std::uint32_t b = 0;
  for (const char byte : bytes) {
    a = (a + static_cast<unsigned char>(byte)) % kLargestPrime;
    b = (b + a) % kLargestPrime;
  }
  return b << 16 | a;
}

}  // namespace accel
