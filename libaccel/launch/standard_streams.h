// StandardStreams: descriptors 0, 1 and 2 of the program.
//
// A program may be started without them (`train >&- 2>&-`). The next descriptor that is opened takes such a number, and
// what somebody prints, and what workers are given as their streams, would go to a socket of the launch.
//
// Threads:  any; no descriptor of another thread is touched.
#pragma once

#include <accel/result.h>

namespace accel::launch {

// Opens /dev/null for those that are missing; they stay open. Cost: three system calls when none is missing.
// Errors  kFileIo.
[[nodiscard]] Result<void> fill_standard_streams();

}  // namespace accel::launch
