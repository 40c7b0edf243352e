// ReadFully: pread(2) until everything is read, or the file ends.
//
// Threads:  a function without state. Blocks as long as the descriptor does.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>

#include <unistd.h>

namespace accel {

struct FullRead {
  std::size_t bytes = 0;  // fewer than asked for: the file ends there, or a read failed
  int error = 0;          // the errno of the read that failed
};

// Fills `out` from byte `offset` of the file on.
[[nodiscard]] inline FullRead read_fully(int fd, std::span<std::byte> out, std::uint64_t offset) {
  FullRead read;
  while (read.bytes < out.size()) {
    const ssize_t got = ::pread(fd,
                                out.data() + read.bytes,
                                out.size() - read.bytes,
                                static_cast<off_t>(offset + read.bytes));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) read.error = errno;
    if (got <= 0) break;
    read.bytes += static_cast<std::size_t>(got);
  }
  return read;
}

}  // namespace accel
