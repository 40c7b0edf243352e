#include "agent/shims/worker_signals.h"

#include <string>

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/unique_fd.h"

namespace accel::agent {

void signal_workers(const std::vector<std::int64_t>& pids, uid_t owner, int signal) {
  for (const std::int64_t pid : pids) {
    if (pid <= 0) continue;
    const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!process) continue;
    struct stat info {};
    const std::string folder = "/proc/" + std::to_string(pid);
    if (::stat(folder.c_str(), &info) != 0 || info.st_uid != owner) continue;
    ::syscall(SYS_pidfd_send_signal, process.get(), signal, nullptr, 0);
  }
}

}  // namespace accel::agent
