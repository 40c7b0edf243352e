// FileSlice: bytes of a file from a place on, read at any offset and never beyond the end.
//
// Threads:  a value that borrows its descriptor; any thread may read.
// Cost:     each read is one pread(2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <accel/result.h>

namespace accel::launcher {

struct FileSlice {
  int fd = -1;
  std::string_view path;    // for messages; borrowed
  std::uint64_t begin = 0;  // bytes from the start of the file
  std::uint64_t size = 0;   // Requires: begin + size is not beyond the file's end

  // Fills `out` with the bytes from `offset` of the slice on.
  // Errors  kCheckpointIncomplete: they are not all there; kFileIo.
  [[nodiscard]] Result<void> read(std::uint64_t offset, std::span<std::byte> out) const;
  // The same as text. Requires: the caller bounds `count`.
  [[nodiscard]] Result<std::string> text(std::uint64_t offset, std::uint64_t count) const;
  // A part of this slice. Errors  kCheckpointIncomplete: it is not within.
  [[nodiscard]] Result<FileSlice> part(std::uint64_t offset, std::uint64_t count) const;
};

}  // namespace accel::launcher
