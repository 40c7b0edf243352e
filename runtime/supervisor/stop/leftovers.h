// Leftovers: ends what a rank left running when it ended with 0, while other ranks go on.
//
//   rank ended --linger--> TERM to what it left, which is named --kill_wait--> KILL
//
// A process belongs to an ended rank when it is below the shim but below no living worker, and it
// is in the rank's session or process group, or carries its ACCEL_LOCAL_RANK or LOCAL_RANK. One that shed all three is
// left to the sweep at the end of the job.
//
// Threads:  one thread; step() does not block.
// Cost:     one pass over /proc per step that is due.
#pragma once

#include <string>
#include <vector>

#include "runtime/clock.h"
#include "runtime/supervisor/protocol/job_outcome.h"
#include "runtime/supervisor/protocol/job_spec.h"
#include "runtime/supervisor/stop/orphan_sweep.h"
#include "runtime/system.h"

namespace accel::supervisor {

class Leftovers {
 public:
  Leftovers(System& system, SweepScope scope, const StopPolicy& policy);

  void rank_ended(int local_rank, pid_t pid, TimePoint now);
  void forget_all() { ended_.clear(); }

  // When step() has something to do; TimePoint::max() when it never has.
  [[nodiscard]] TimePoint next() const noexcept;

  // Does what is due. Returns what was named now.
  [[nodiscard]] std::vector<Leftover> step(TimePoint now, const std::vector<pid_t>& live_workers);

 private:
  struct EndedRank {
    int local_rank;
    pid_t pid;
    int signal;  // what is sent at `due`
    TimePoint due;
  };

  [[nodiscard]] bool belongs_to(const ProcessEntry& stray, const EndedRank& rank) const;

  System& system_;
  SweepScope scope_;
  Duration linger_;
  Duration kill_wait_;
  std::vector<EndedRank> ended_;
};

}  // namespace accel::supervisor
