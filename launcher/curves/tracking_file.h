// TrackingFile: the bytes of a file that a tracker writes.
//
// Folders of runs are other people's too: what is no plain file (a pipe, a device) is not read, and nothing waits for its writer.
//
// Threads:  any one; reads the file.
// Cost:     never more memory than the bound.
#pragma once

#include <cstddef>
#include <string>

#include <accel/result.h>

namespace accel::launcher {

// As it is now: what is written meanwhile is there the next time.
// Errors  kFileIo: unreadable, no plain file, more than `most_bytes`.
[[nodiscard]] Result<std::string> read_tracking_file(const std::string& path,
                                                     std::size_t most_bytes);

}  // namespace accel::launcher
