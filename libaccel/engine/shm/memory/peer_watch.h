// PeerWatch: whether the processes of the other ranks still live.
//
// Threads:  one thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include <sys/types.h>

#include "runtime/unique_fd.h"

namespace accel::shm {

class PeerWatch {
 public:
  virtual ~PeerWatch() = default;
  [[nodiscard]] virtual bool is_alive(int rank) = 0;
};

// When the process was started, in ticks since boot; 0: there is none. Together with the pid it names one process for
// ever.
[[nodiscard]] std::uint64_t start_time_of(pid_t pid);

// By pidfds, which no reuse of a pid can deceive once they are open.
class ProcessWatch final : public PeerWatch {
 public:
  struct Process {
    pid_t pid = 0;
    std::uint64_t start_time = 0;
  };
  // In the order of the ranks. One that is gone already, or whose pid means another process by now, is not alive; one
  // without a pid is not known, and counts as alive.
  explicit ProcessWatch(const std::vector<Process>& processes = {});

  // Says which process that rank is.
  void watch(int rank, const Process& process);

  [[nodiscard]] bool is_alive(int rank) override;

 private:
  std::vector<UniqueFd> fds_;  // empty where none could be opened
  std::vector<Process> processes_;
};

}  // namespace accel::shm
