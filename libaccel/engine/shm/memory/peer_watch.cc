#include "libaccel/engine/shm/memory/peer_watch.h"

#include <fstream>
#include <string>
#include <utility>

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "libaccel/engine/shm/memory/process_stat.h"

namespace accel::shm {

std::uint64_t start_time_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  return start_time_in(file);
}

ProcessWatch::ProcessWatch(const std::vector<Process>& processes) {
  for (std::size_t rank = 0; rank < processes.size(); ++rank)
    watch(static_cast<int>(rank), processes[rank]);
}

void ProcessWatch::watch(int rank, const Process& process) {
  const auto at = static_cast<std::size_t>(rank);
  if (at >= processes_.size()) {
    fds_.resize(at + 1);
    processes_.resize(at + 1);
  }
  processes_[at] = process;
  fds_[at].reset();
  if (process.pid == 0) return;
  UniqueFd watched(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  // Asked after the descriptor is open: it is that of the process that the line meant.
  if (start_time_of(process.pid) != process.start_time) watched.reset();
  fds_[at] = std::move(watched);
}

bool ProcessWatch::is_alive(int rank) {
  const auto at = static_cast<std::size_t>(rank);
  if (at >= processes_.size() || processes_[at].pid == 0) return true;
  const UniqueFd& watched = fds_[at];
  const Process& process = processes_[at];
  // No descriptor to be had (none left, an old kernel) is no death: the start time tells, a pid that was reused too.
  if (!watched) return start_time_of(process.pid) == process.start_time;
  pollfd end = {watched.get(), POLLIN, 0};
  // A signal that comes just then is no answer.
  return ::poll(&end, 1, 0) != 1;
}

}  // namespace accel::shm
