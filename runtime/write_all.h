// WriteAll: write(2) until everything is written.
//
// Threads:  a function without state. Blocks as long as the descriptor does.
#pragma once

#include <cerrno>
#include <cstddef>
#include <string_view>

#include <unistd.h>

namespace accel {

// 0, or the errno of the write that failed, which errno has too. Takes off `bytes` what was written.
[[nodiscard]] inline int write_all(int fd, std::string_view& bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written == 0) errno = EIO;  // no progress, and no errno of its own
    if (written <= 0) return errno;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

}  // namespace accel
