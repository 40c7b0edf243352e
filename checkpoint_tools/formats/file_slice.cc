#include "checkpoint_tools/formats/file_slice.h"

#include <accel/error.h>

#include "runtime/printable.h"
#include "runtime/read_fully.h"

namespace accel::launcher {

Result<FileSlice> FileSlice::part(std::uint64_t offset, std::uint64_t count) const {
  if (offset > size || count > size - offset)
    return Error(ErrorCode::kCheckpointIncomplete,
                 printable(path) + " has no " + std::to_string(count) + " bytes from byte " +
                     std::to_string(begin + offset) + " on: what it holds there ends at byte " +
                     std::to_string(begin + size),
                 "copy the file again: it is cut short or was changed");
  return FileSlice{.fd = fd, .path = path, .begin = begin + offset, .size = count};
}

Result<void> FileSlice::read(std::uint64_t offset, std::span<std::byte> out) const {
  if (const auto within = part(offset, out.size()); !within) return within.error();
  const FullRead read = read_fully(fd, out, begin + offset);
  if (read.error != 0)
    return Error(ErrorCode::kFileIo,
                 "cannot read " + printable(path) + ": " + errno_text(read.error));
  if (read.bytes < out.size())
    return Error(ErrorCode::kCheckpointIncomplete,
                 printable(path) + " became shorter while it was read",
                 "merge again when nobody writes to the checkpoint");
  return {};
}

Result<std::string> FileSlice::text(std::uint64_t offset, std::uint64_t count) const {
  if (const auto within = part(offset, count); !within) return within.error();
  std::string bytes(count, '\0');
  if (const auto done = read(offset, std::as_writable_bytes(std::span(bytes))); !done)
    return done.error();
  return bytes;
}

}  // namespace accel::launcher
