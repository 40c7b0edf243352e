// ThreadStacks: what the kernel shows of the threads of a process, for a report of a hang.
//
// Threads:  any; reads /proc alone.
#pragma once

#include <string>

#include <sys/types.h>

#include "runtime/system.h"

namespace accel::supervisor {

// One paragraph for each thread (at most 256): number, name, state, the kernel function that it
// waits in, and its kernel stack where we may read it (root). At most 60 KiB; empty when the process
// is gone.
[[nodiscard]] std::string read_thread_stacks(System& system, pid_t pid);

}  // namespace accel::supervisor
