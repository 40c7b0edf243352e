// SealedFile: small files by which one process tells a later one something, checked before they are used.
//
//   <magic><version> <xxh3-64 of the body, 16 hex digits>\n
//   <body>\n
//
// They are replaced in one step and not synced: who reads them outlives the process that wrote them, not the
// machine. After a loss of power a file may be empty or torn, and the checksum says so.
//
// Threads:  functions without state. They read and write files of at most a few MiB.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <accel/result.h>

#include "runtime/unique_fd.h"

namespace accel::supervisor {

struct Seal {
  std::string_view magic;  // with a blank at its end
  int version = 1;
  std::string_view kind;  // for messages: "state file of accel-shim"
};

[[nodiscard]] std::string seal(const Seal& seal, std::string_view body);

// The body. Errors  kShimState: another kind, another version (both are named), cut short or changed; `path` is named.
[[nodiscard]] Result<std::string> unseal(const Seal& seal,
                                         std::string_view text,
                                         const std::string& path);

// Replaces `name` in the folder, mode 0600. Errors  kShimState with the errno.
[[nodiscard]] Result<void> replace_file(int folder, const std::string& name, std::string_view text);

// A regular file, never a link and never a pipe that would wait for a writer. `path` is relative to `folder`, which may
// be AT_FDCWD. Errors  kShimState: it is none, cannot be read, or has more than `limit` bytes.
[[nodiscard]] Result<std::string> read_plain_file(int folder,
                                                  const std::string& path,
                                                  std::size_t limit);

}  // namespace accel::supervisor
