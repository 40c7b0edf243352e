// AllocationEnd: how long a job that is told to stop inside a SLURM allocation may take.
//
// SLURM kills what it has told to end after KillWait, whatever our own grace says: a launcher that waits longer dies
// in the middle of its farewell, with no report and no exit code of its own.
//
//   SIGTERM                  scancel, the time limit, preemption: KillWait counts from now
//   SIGUSR1, SIGHUP          the notice of `sbatch --signal`: KillWait counts from the allocation's end
//   SIGINT                   the user's own: not bounded
//
// KillWait is not in the environment: SLURM's default, unless ACCEL_SLURM_KILL_WAIT says otherwise.
//
// Threads:  pure functions.
// Source:   slurm.conf(5), "KillWait"; sbatch(1), "--signal", "SLURM_JOB_END_TIME"; docs/admin/slurm.md.
#pragma once

#include <chrono>
#include <cstdint>

#include "runtime/supervisor/protocol/job_spec.h"

namespace accel::launcher {

inline constexpr std::chrono::seconds kFarewell{5};  // for SIGKILL, the sweep and the report

struct AllocationEnd {
  bool is_there = false;         // false: no allocation
  std::int64_t end_seconds = 0;  // since 1970; 0: SLURM does not say
  std::int64_t kill_wait_seconds = 30;
};

// Of `asked` as much as SLURM leaves after `signal`.
[[nodiscard]] supervisor::Milliseconds granted_grace(
    supervisor::Milliseconds asked,
    int signal,
    const AllocationEnd& end,
    std::chrono::system_clock::time_point now = std::chrono::system_clock::now());

}  // namespace accel::launcher
