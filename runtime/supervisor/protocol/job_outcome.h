// JobOutcome: how a job ended, with enough evidence to explain it.
//
// The shim fills it in and sends it to its owner, which renders the report.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accel/result.h>

namespace accel::supervisor {

enum class ExitCause {
  kOk,
  kNonZero,
  kSignaled,
  kOutOfMemory,  // only when provable (memory.events of the cgroup)
  kExecFailed,
  kUnkillable,
  kStoppedByUs,     // after our own signal
  kLost,            // its supervisor went before it could be reaped
  kLibraryMissing,  // the loader did not find a shared library (its message is in the tail)
  kHang,            // it made no progress, and we stopped it
};
inline constexpr ExitCause kLastExitCause = ExitCause::kHang;
inline constexpr std::size_t kNumExitCauses = static_cast<std::size_t>(kLastExitCause) + 1;

// One worker's end. Times are of CLOCK_MONOTONIC.
struct WorkerExit {
  int global_rank = 0;
  int local_rank = 0;
  int generation = 0;
  std::int64_t pid = 0;
  ExitCause cause = ExitCause::kOk;
  int exit_code = 0;  // when it exited
  int signal = 0;     // when a signal ended it
  bool core_dumped = false;
  std::string core_path;  // empty when unknown
  std::string stage;      // kExecFailed: the step before exec that failed ("execve", "chdir")
  int error_number = 0;   // kExecFailed: errno
  std::string program;    // argv[0] as executed
  std::uint64_t peak_rss_bytes = 0;
  std::int64_t step = -1;  // the last one that it reported in its channel; -1: none
  std::chrono::nanoseconds seen_at{0};
  std::string tail;        // the last lines of its stderr (else stdout), at most 64 KiB
  std::string error_file;  // content of TORCHELASTIC_ERROR_FILE, when written
  std::string last_error;  // the error record of the worker channel, when written
  std::string
      detail;  // kHang: how long it was silent, and since which step; kOutOfMemory: its limit; "chdir": where
  bool has_saved = false;  // it marked in its channel that it saved for its preemption
  std::uint64_t saved_step = 0;

  // It ended neither well nor because others had to end.
  [[nodiscard]] bool is_failure() const {
    return cause != ExitCause::kOk && cause != ExitCause::kStoppedByUs;
  }
  // It has saved for a preemption and ended as one that is to be started again. SLURM signals every process, so a worker can be done
  // before its launcher has the signal. requeue_code: StopPolicy's; 0: no code says so.
  [[nodiscard]] bool is_preempted(int requeue_code) const {
    return has_saved && requeue_code != 0 && exit_code == requeue_code;
  }
};

// A process that outlived its rank and had to be ended.
struct Leftover {
  std::int64_t pid = 0;
  std::string command;
};

// The newest checkpoint that a worker told of.
struct CommittedCheckpoint {
  std::uint64_t step = 0;
  int generation = 0;
  std::string path;
  std::string token;
};

struct JobOutcome {
  bool success = false;
  int exit_code = 0;   // the launcher's: the worker's code, 128 + signal, or the requeue code
  std::string reason;  // "succeeded", "failed", "stopped by SIGINT", ...
  int restarts = 0;
  bool has_saved = false;  // preempted, and every rank had saved: start it again to go on
  std::optional<CommittedCheckpoint> checkpoint;
  std::optional<WorkerExit> first_failure;  // of the last generation, by time
  std::vector<WorkerExit> exits;            // of the last generation, by time
  std::vector<Leftover> leftovers;
  std::vector<std::string> notices;  // a log that had to drop, an unkillable process, ...
};

[[nodiscard]] std::string to_json(const WorkerExit& exit);
[[nodiscard]] std::string to_json(const JobOutcome& outcome);

// Errors  kProtocol for text that is not what to_json() writes.
[[nodiscard]] Result<WorkerExit> worker_exit_from_json(std::string_view json);
[[nodiscard]] Result<JobOutcome> job_outcome_from_json(std::string_view json);

}  // namespace accel::supervisor
