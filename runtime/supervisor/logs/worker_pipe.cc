#include "runtime/supervisor/logs/worker_pipe.h"

#include <cerrno>
#include <string>

#include <fcntl.h>
#include <unistd.h>

namespace accel::supervisor {
namespace {

// Between two evils, tried with a flood of eight workers (bench/run logs): what is in flight in larger
// pipes no longer fits the processor's caches, and smaller ones need too many changes of thread.
constexpr int kPipeBytes = 128 * 1024;

}  // namespace

Result<WorkerPipe> make_worker_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return Error(ErrorCode::kSpawnFailed, "no pipe for a worker: " + errno_text(errno));
  }
  // An unprivileged user past his 64 MiB of pipes gets EPERM: then it stays as it is.
  ::fcntl(ends[0], F_SETPIPE_SZ, kPipeBytes);
  return WorkerPipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

void set_non_blocking(int fd) noexcept {
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
}

Result<UniqueFd> duplicate(int fd) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (copy) return copy;
  return Error(ErrorCode::kSpawnFailed,
               "cannot pass descriptor " + std::to_string(fd) + " on: " + errno_text(errno));
}

}  // namespace accel::supervisor
