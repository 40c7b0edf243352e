// WorkerGroup: the processes of one generation.
//
// Starts them, passes signals on, and takes the evidence of their ends. Knows nothing of policies.
//
// Threads:  the supervisor's thread (the one that spawns must live as long as the process).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/supervisor/protocol/job_outcome.h"
#include "runtime/supervisor/protocol/job_spec.h"
#include "runtime/supervisor/spawn/exit_report.h"
#include "runtime/supervisor/spawn/fork_server.h"
#include "runtime/supervisor/spawn/spawner.h"
#include "runtime/system.h"

namespace accel::supervisor {

// One worker of the generation.
struct Worker {
  const WorkerSpec* spec = nullptr;
  std::optional<SpawnedProcess> process;
  bool owns_group = true;    // false: it shares the owner's process group (foreground)
  bool is_alive = false;     // started and not reaped
  bool was_stopped = false;  // got a signal that ends it from us
  bool is_stopped = false;   // by SIGSTOP and its like
  bool is_traced = false;    // by a debugger
  std::string program;       // argv[0]
  std::string cwd;
};

// The end of a worker that was never started, and of one that did not end after SIGKILL.
[[nodiscard]] WorkerExit never_started(const WorkerSpec& spec, const ExecFailure& failure);
[[nodiscard]] WorkerExit unkillable(const Worker& worker);

class WorkerGroup {
 public:
  // `forks`, unless null, makes the workers in place of spawn(); borrowed.
  explicit WorkerGroup(System& system, ForkServer* forks = nullptr)
      : system_(system), forks_(forks) {}

  // Starts a worker. A failure to start is given back as its end (kExecFailed).
  [[nodiscard]] std::optional<WorkerExit> start(const WorkerSpec& spec,
                                                const SpawnRequest& request);

  // Forgets all workers. Requires: none is alive.
  void clear() { workers_.clear(); }

  [[nodiscard]] int num_alive() const noexcept;
  [[nodiscard]] std::vector<pid_t> live_pids() const;
  [[nodiscard]] Worker* find(pid_t pid) noexcept;
  [[nodiscard]] std::vector<Worker>& workers() noexcept { return workers_; }
  [[nodiscard]] const std::vector<Worker>& workers() const noexcept { return workers_; }

  // To the worker's whole process group (the worker alone when it shares the owner's).
  void signal(Worker& worker, int signal);

  // What the kernel shows of it: "rank 0 (pid 12): state S, waits in futex_wait".
  [[nodiscard]] std::string describe(const Worker& worker) const;

  // SIGKILL to what is left of the group of a worker that has ended and is not reaped yet.
  void kill_group(const Worker& worker);

  // Reaps a worker that has ended and says what is known about it; ranks are filled in.
  [[nodiscard]] WorkerExit reap(Worker& worker, bool memory_ran_out);

 private:
  System& system_;
  ForkServer* forks_;
  std::vector<Worker> workers_;
};

}  // namespace accel::supervisor
