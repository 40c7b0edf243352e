// FileMask: the umask of this process.
//
// Threads:  any; umask() itself could only be asked by changing it for all threads.
#pragma once

#include <optional>

#include <sys/types.h>

namespace accel::launch {

// Of /proc/self/status; none where /proc is not there.
[[nodiscard]] std::optional<mode_t> own_file_mask();

}  // namespace accel::launch
