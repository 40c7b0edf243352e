// System: the system calls by which the supervisor looks at and ends processes it may not own.
//
// A seam: tests put a process behind it that cannot be killed, a /proc that says something else, or
// a cgroup that this machine does not have. Plain I/O on descriptors of our own does not go through
// it.
//
// Errors    calls that return int give 0 or a negated errno.
// Threads:  the real one may be called from any thread.
#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

#include <accel/result.h>

#include "runtime/unique_fd.h"

namespace accel {

class System {
 public:
  virtual ~System() = default;

  // The whole file, up to `limit` bytes (files of /proc say nothing about their size). Errors
  // kFileIo.
  [[nodiscard]] virtual Result<std::string> read_file(const std::string& path,
                                                      std::size_t limit = 1 << 20) = 0;

  // What one read gives, at most 4 KiB: for files of /proc that come in one piece.
  [[nodiscard]] virtual Result<std::string> read_once(const std::string& path) {
    return read_file(path, 4096);
  }

  // The numbers in /proc, in no order; a process may be gone by the time its number is used.
  [[nodiscard]] virtual std::vector<pid_t> process_ids() = 0;

  // A handle that stays bound to this very process. An empty one when it is gone.
  [[nodiscard]] virtual UniqueFd open_process(pid_t pid) = 0;
  virtual int signal_process(int pidfd, int signal) = 0;

  // Requires: the leader of the group is a child that has not been reaped (its number cannot be
  // reused).
  virtual int signal_group(pid_t group, int signal) = 0;
};

// The real system calls. One object for the life of the program.
[[nodiscard]] System& real_system();

}  // namespace accel
