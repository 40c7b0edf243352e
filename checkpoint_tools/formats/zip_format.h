// ZipFormat: the numbers of zip records.
//
// Source:   PKWARE's APPNOTE.TXT, 4.3 and 4.5.
#pragma once

#include <cstdint>

namespace accel::launcher::zip {

inline constexpr std::uint64_t kEndBytes = 22;
inline constexpr std::uint64_t kLocatorBytes = 20;
inline constexpr std::uint64_t kEnd64Bytes = 56;
inline constexpr std::uint64_t kDirectoryEntryBytes = 46;
inline constexpr std::uint64_t kLocalHeaderBytes = 30;

inline constexpr std::uint32_t kEndSignature = 0x06054b50;
inline constexpr std::uint32_t kLocatorSignature = 0x07064b50;
inline constexpr std::uint32_t kEnd64Signature = 0x06064b50;
inline constexpr std::uint32_t kDirectorySignature = 0x02014b50;
inline constexpr std::uint32_t kLocalSignature = 0x04034b50;

inline constexpr std::uint16_t kZip64Extra = 1;
inline constexpr std::uint64_t kLarge16 = 0xFFFF;  // the number stands in a zip64 record
inline constexpr std::uint64_t kLarge32 = 0xFFFFFFFF;

}  // namespace accel::launcher::zip
