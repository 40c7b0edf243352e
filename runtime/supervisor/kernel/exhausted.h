// Exhausted: what the kernel has no more of, said with the limit that somebody can raise.
//
// Threads:  pure.
#pragma once

#include <string>

#include <accel/error.h>

namespace accel::supervisor {

// Descriptors (EMFILE, ENFILE), processes and threads (EAGAIN), watches of epoll (ENOSPC), memory (ENOMEM).
[[nodiscard]] bool is_exhausted(int error_number) noexcept;

// kSpawnFailed: "`what`: no more files can be opened: Too many open files". Of another errno only its text.
[[nodiscard]] Error exhausted_error(const std::string& what, int error_number);

}  // namespace accel::supervisor
