// ExitReport: what can be said about the end of a worker, from evidence only.
//
// A cause is named when something proves it: the wait status, the pipe of the spawner, a signal
// that we sent ourselves, the counter of the memory cgroup, the loader's own message. Nothing is
// guessed: a SIGKILL without such evidence is a SIGKILL.
//
// Threads:  functions without state; the supervisor's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <sys/resource.h>
#include <sys/types.h>

#include "runtime/supervisor/protocol/job_outcome.h"
#include "runtime/supervisor/spawn/spawner.h"
#include "runtime/system.h"

namespace accel::supervisor {

// The end of a child as the kernel tells it.
struct WaitStatus {
  pid_t pid = 0;
  int code = 0;    // CLD_EXITED, CLD_KILLED, CLD_DUMPED
  int status = 0;  // exit code or signal
  std::uint64_t peak_rss_bytes = 0;

  [[nodiscard]] bool is_success() const noexcept;
};

// The next child that has ended, left unreaped: its pid and process group cannot be reused yet.
// The memory is not known before it is reaped.
[[nodiscard]] std::optional<WaitStatus> peek_ended_child();

// A child that was stopped by a signal, or goes on; each change is told once.
struct StopChange {
  pid_t pid = 0;
  bool is_stopped = false;
};
[[nodiscard]] std::optional<StopChange> take_stop_change();

// Whether the calling process has a child at all, dead or alive.
[[nodiscard]] bool has_children();

// The same, not counting `spared`.
[[nodiscard]] bool has_children_besides(System& system, pid_t spared);

// Reaps `pid`. std::nullopt when it is not a child of ours or has not ended.
[[nodiscard]] std::optional<WaitStatus> reap_child(pid_t pid);

struct ExitEvidence {
  std::optional<ExecFailure> exec_failure;
  bool was_stopped = false;     // we had sent it a signal that ends it
  bool memory_ran_out = false;  // the cgroup counted an OOM kill while it lived
  std::string core_path;        // where the kernel writes this process's core; empty when unknown
};

// Fills in cause, codes, core and memory; ranks, times and texts are the caller's.
[[nodiscard]] WorkerExit describe_exit(const WaitStatus& status, const ExitEvidence& evidence);

// Whether `tail` holds the loader's complaint about a missing shared library, as ld.so writes it.
[[nodiscard]] bool names_missing_library(std::string_view tail);

// Expands a core_pattern for a process; empty when it is a pipe, or holds what only the kernel
// knows. Paths that are not absolute begin at `cwd`.
[[nodiscard]] std::string expand_core_pattern(
    std::string_view pattern, bool core_uses_pid, pid_t pid, int signal, const std::string& cwd);

// The same with this machine's settings.
[[nodiscard]] std::string core_path_of(System& system,
                                       pid_t pid,
                                       int signal,
                                       const std::string& cwd);

// OOM kills that the memory cgroup of the calling process has counted; std::nullopt without one.
[[nodiscard]] std::optional<std::uint64_t> count_oom_kills(System& system);

// The same for the cgroup (v2) whose folder this is.
[[nodiscard]] std::optional<std::uint64_t> count_oom_kills_in(System& system,
                                                              const std::string& cgroup);

// The launcher's exit status for this end: the exit code, or 128 + signal.
[[nodiscard]] int shell_exit_code(const WorkerExit& exit);

// "SIGKILL"; "signal 77" for one without a name.
[[nodiscard]] std::string signal_name(int signal);

}  // namespace accel::supervisor
