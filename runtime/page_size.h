// PageSize: the unit in which the kernel gives and maps memory.
//
// Threads:  pure.
#pragma once

#include <cstddef>

#include <unistd.h>

namespace accel {

[[nodiscard]] inline std::size_t page_bytes() noexcept {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

// Rounded up to a multiple of it.
[[nodiscard]] inline std::size_t whole_pages(std::size_t bytes) noexcept {
  return (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

}  // namespace accel
