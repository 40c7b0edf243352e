// WorkerSignals: sends a signal to workers that a shim has started.
//
// Threads:  a plain function.
#pragma once

#include <cstdint>
#include <vector>

#include <sys/types.h>

namespace accel::agent {

// A number cannot be reused while the shim has not said that its worker ended: it reaps only after that. What does not
// belong to `owner` (any more) is left alone, and so is 0.
void signal_workers(const std::vector<std::int64_t>& pids, uid_t owner, int signal);

}  // namespace accel::agent
