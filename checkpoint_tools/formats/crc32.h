// Crc32: the checksum that zip archives have of each entry.
//
// Threads:  a pure function.
// Source:   PKWARE's APPNOTE.TXT, 4.4.7.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace accel::launcher {

[[nodiscard]] std::uint32_t crc32(std::span<const std::byte> bytes);

}  // namespace accel::launcher
