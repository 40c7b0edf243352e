// Spawner: starts one process, with nothing inherited but what was declared.
//
// The new process is a child of the calling thread's process, has a pidfd from birth, and dies with
// the thread that spawned it when it asks for that. It starts with exactly the descriptors 0, 1, 2
// and those in `keep_fds`, default signal handlers and an empty signal mask, or a full one.
//
// Threads:  call from one thread that lives as long as the process (PR_SET_PDEATHSIG follows the
// thread).
//           Other threads may exist: the child makes only async-signal-safe calls before it
//           executes.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <sys/resource.h>
#include <sys/types.h>

#include <accel/env_contract.h>

#include "runtime/unique_fd.h"

namespace accel::supervisor {

enum class Session {
  kNew,       // setsid: a session and a process group of its own
  kNewGroup,  // a process group of its own in the caller's session
  kJoin,      // the process group `join_group` of the caller's session, when spawn() returns
};

// Whose rights the program gets. Resolved by the caller: a child must not ask the user database.
struct Credentials {
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;  // the whole list of supplementary groups
};

// Soft and hard limit of a process.
struct ResourceLimit {
  int resource = 0;  // RLIMIT_CORE, ...
  std::uint64_t value = 0;
};

// kAuto: clone3 where the kernel (and its seccomp filter) lets us, else fork.
enum class SpawnMethod { kAuto, kFork };

struct SpawnRequest {
  std::vector<std::string> argv;  // argv[0] without '/' is looked up on PATH of `env`
  EnvMap env;                     // the whole environment
  std::string cwd;                // empty keeps the caller's
  int stdio[3] = {0, 1, 2};       // descriptors of the caller that become 0, 1, 2
  std::vector<int> keep_fds;      // inherited under the same number; each above 2
  std::vector<int> cpus;          // affinity as OS indices; empty keeps the caller's
  // Memory nodes as OS indices below kMaxMemoryNodes; empty keeps the caller's policy.
  std::vector<int> memory_nodes;
  bool bind_memory =
      false;  // nowhere else, or no program; else a preference for the first, where it can be had
  Session session = Session::kNew;
  pid_t join_group = 0;                    // for Session::kJoin
  bool own_terminal = false;               // kNew: stdio[1] becomes the controlling terminal
  bool blocks_signals = false;             // all: early ones wait until the program has its mask
  bool die_with_parent = true;             // SIGKILL when the calling thread ends
  std::optional<Credentials> credentials;  // empty keeps the caller's
  bool drops_oom_protection = false;       // an oom_score_adj below 0 becomes 0
  int cgroup_fd = -1;                      // the child is born in this cgroup (v2)
  std::optional<rlimit> open_files;        // RLIMIT_NOFILE; empty keeps the caller's
  std::vector<ResourceLimit> limits;       // after it
  SpawnMethod method = SpawnMethod::kAuto;
};

// What kept a child from executing its program.
struct ExecFailure {
  std::string stage;  // "execve", "chdir", "dup2", ...
  int error_number = 0;
};

class SpawnedProcess {
 public:
  SpawnedProcess(pid_t pid, UniqueFd pidfd, UniqueFd error_pipe)
      : pid_(pid), pidfd_(std::move(pidfd)), error_pipe_(std::move(error_pipe)) {}

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  [[nodiscard]] int pidfd() const noexcept { return pidfd_.get(); }
  [[nodiscard]] UniqueFd take_pidfd() noexcept { return std::move(pidfd_); }

  // Why the program was never executed; std::nullopt when it was. Does not block.
  // Requires: the process has ended (before that it may not have got so far).
  [[nodiscard]] std::optional<ExecFailure> exec_failure();

 private:
  pid_t pid_;
  UniqueFd pidfd_;
  UniqueFd error_pipe_;
};

// A process, or why there is none: {"find on PATH", ENOENT} when no folder of PATH has the program,
// {"pipe2" or "clone", errno} when the system refuses. A program that is found but cannot be
// executed shows later, as an exec_failure() of a process that ended with 127.
using SpawnResult = std::variant<SpawnedProcess, ExecFailure>;
[[nodiscard]] SpawnResult spawn(const SpawnRequest& request);

// Gives the calling process, which was forked for it, everything that spawn() gives a program before it is executed:
// session, signals, streams, close-on-exec for all descriptors but `keep_fds`, limits, cores, memory, rights, death
// signal, folder; and the cgroup. argv and env are not looked at. A step that fails is written to `error_fd`, as
// exec_failure() reads it, and ends the process with 127. `parent` is who it shall die with.
// Requires: one thread; the descriptors of the request are above 2.
void enter_worker(const SpawnRequest& request, int error_fd, pid_t parent);

// The path execve() should get for `name`: itself when it has a '/', else the first executable
// match on `path` (colon separated). std::nullopt when there is none.
[[nodiscard]] std::optional<std::string> find_program(const std::string& name,
                                                      const std::string& path);

}  // namespace accel::supervisor
