// WorkerPipe: the descriptors that workers are given, and the pipes behind them.
//
// Threads:  functions without state.
#pragma once

#include <accel/result.h>

#include "runtime/unique_fd.h"

namespace accel::supervisor {

struct WorkerPipe {
  UniqueFd read_end;
  UniqueFd write_end;
};

// Close-on-exec, blocking; of 128 KiB where the user's limit of pipes allows it.
// Errors  kSpawnFailed.
[[nodiscard]] Result<WorkerPipe> make_worker_pipe();

void set_non_blocking(int fd) noexcept;

// Close-on-exec, above 2. Errors  kSpawnFailed.
[[nodiscard]] Result<UniqueFd> duplicate(int fd);

}  // namespace accel::supervisor
