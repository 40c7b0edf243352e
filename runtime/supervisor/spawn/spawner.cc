// Why not posix_spawn, std::system or Boost.Process: a supervisor needs the pidfd from birth (no
// window in which the pid is reused), a child that dies with its parent, an exact set of
// descriptors, and to learn errno and the failing step when the program cannot be executed.
// posix_spawn offers none of these.
//
// The parent prepares everything first (path, argument and environment arrays, descriptors, the CPU
// set), then calls clone3 with CLONE_PIDFD and CLONE_CLEAR_SIGHAND. The child does, in this order:
//
//   session or group -> controlling terminal -> signals -> 0, 1, 2 -> close-on-exec for the rest,
//   cleared for the declared -> affinity -> memory policy -> groups and user -> PR_SET_PDEATHSIG -> is the parent still there? -> chdir
//   -> execve
//
// The question after PR_SET_PDEATHSIG closes the race in which the parent died before the request
// was in force. Between clone and exec the child makes only async-signal-safe calls and touches
// only memory that was ready before: other threads of the parent may have held any lock. A step
// that fails writes {stage, errno} to a close-on-exec pipe and the child ends with 127; a
// successful exec closes the pipe.
//
// Old kernels and old container runtimes answer clone3 with ENOSYS or EPERM: then fork and
// pidfd_open. The pid cannot be reused in between, since nobody else reaps our children.
//
// A change of user clears PR_SET_PDEATHSIG, so the user comes first.
//
// Not here: NO_NEW_PRIVS. A launcher runs workers as its own user, and a worker may want sudo.

#include "runtime/supervisor/spawn/spawner.h"

#include <array>
#include <cerrno>
#include <csignal>

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/supervisor/kernel/close_on_exec.h"
#include "runtime/supervisor/protocol/job_spec.h"

namespace accel::supervisor {
namespace {

enum Stage : int {
  kSetsid,
  kTerminal,
  kSignals,
  kDup2,
  kCloseRange,
  kKeepFd,
  kLimits,
  kAffinity,
  kMemory,
  kOomScore,
  kGroups,
  kUser,
  kDeathSignal,
  kParentGone,
  kChdir,
  kCgroup,
  kExecve,
};
constexpr std::array kStageNames = {"setsid",
                                    "TIOCSCTTY",
                                    "sigaction",
                                    "dup2",
                                    "close_range",
                                    "fcntl",
                                    "setrlimit",
                                    "sched_setaffinity",
                                    "set_mempolicy",
                                    "oom_score_adj",
                                    "setgroups",
                                    "setresuid",
                                    "prctl",
                                    "getppid",
                                    "chdir",
                                    "cgroup.procs",
                                    "execve"};
static_assert(kStageNames.size() == kExecve + 1);

constexpr int kBitsOfWord = 8 * sizeof(unsigned long);
using MemoryNodes = std::array<unsigned long, kMaxMemoryNodes / kBitsOfWord>;

struct ChildReport {
  int stage;
  int error_number;
};

// Everything the child needs, ready before it exists.
struct ChildPlan {
  const SpawnRequest& request;
  const char* path;
  char* const* argv;
  char* const* envp;
  std::array<int, 3> stdio;
  int error_fd;
  pid_t parent;
  cpu_set_t cpus;
  MemoryNodes memory_nodes;
};

[[noreturn]] void fail_child(const ChildPlan& plan, Stage stage) {
  const ChildReport report = {stage, errno};
  (void)!::write(plan.error_fd, &report, sizeof report);
  ::_exit(127);
}

void check_child(const ChildPlan& plan, Stage stage, bool worked) {
  if (!worked) fail_child(plan, stage);
}

void enter_session(const ChildPlan& plan) {
  switch (plan.request.session) {
    case Session::kNew:
      check_child(plan, kSetsid, ::setsid() >= 0);
      break;
    case Session::kNewGroup:
      check_child(plan, kSetsid, ::setpgid(0, 0) == 0);
      break;
    case Session::kJoin:
      check_child(plan, kSetsid, ::setpgid(0, plan.request.join_group) == 0);
      break;
  }
  if (plan.request.own_terminal) {
    check_child(plan, kTerminal, ::ioctl(plan.stdio[1], TIOCSCTTY, 0) == 0);
  }
}

// CLONE_CLEAR_SIGHAND resets handlers but keeps what is ignored. What we ignore for ourselves must
// not reach the program; SIGHUP stays as it is, or nohup would have no effect.
void reset_signals(const ChildPlan& plan) {
  struct sigaction by_default {};
  by_default.sa_handler = SIG_DFL;
  for (const int signal :
       {SIGPIPE, SIGXFSZ, SIGTTOU, SIGTTIN, SIGINT, SIGQUIT, SIGTERM, SIGCHLD, SIGTSTP}) {
    check_child(plan, kSignals, ::sigaction(signal, &by_default, nullptr) == 0);
  }
  sigset_t blocked;
  plan.request.blocks_signals ? ::sigfillset(&blocked) : ::sigemptyset(&blocked);
  check_child(plan, kSignals, ::sigprocmask(SIG_SETMASK, &blocked, nullptr) == 0);
}

void arrange_descriptors(const ChildPlan& plan) {
  for (int target = 0; target < 3; ++target) {
    const int source = plan.stdio[target];
    if (source == target) {
      check_child(plan, kDup2, ::fcntl(target, F_SETFD, 0) == 0);
    } else {
      check_child(plan, kDup2, ::dup2(source, target) >= 0);
    }
  }
  check_child(plan, kCloseRange, close_on_exec_from(3));
  for (const int fd : plan.request.keep_fds)
    check_child(plan, kKeepFd, ::fcntl(fd, F_SETFD, 0) == 0);
}

// The C library's functions would ask every thread of the parent, which this child does not have:
// the plain system calls change this one thread, which is all there is.
void become(const ChildPlan& plan, const Credentials& credentials) {
  const auto groups =
      ::syscall(SYS_setgroups, credentials.groups.size(), credentials.groups.data());
  check_child(plan, kGroups, groups == 0);
  const uid_t uid = credentials.uid;
  const gid_t gid = credentials.gid;
  check_child(plan, kUser, ::syscall(SYS_setresgid, gid, gid, gid) == 0);
  check_child(plan, kUser, ::syscall(SYS_setresuid, uid, uid, uid) == 0);
}

// A kernel without memory nodes (ENOSYS) and containers that forbid the call (EPERM) cannot give a preference, and the
// program is no worse for it. What was asked for as a must is an error.
void choose_memory(const ChildPlan& plan) {
  if (plan.request.memory_nodes.empty()) return;
  const int mode = plan.request.bind_memory ? MPOL_BIND : MPOL_PREFERRED;
  const auto chosen =
      ::syscall(SYS_set_mempolicy, mode, plan.memory_nodes.data(), kMaxMemoryNodes + 1UL);
  check_child(plan, kMemory, chosen == 0 || !plan.request.bind_memory);
}

// Without /proc there is nothing to see, and nothing to change.
void drop_oom_protection(const ChildPlan& plan) {
  const int file = ::open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
  char sign = 0;
  if (file < 0 || ::pread(file, &sign, 1, 0) != 1 || sign != '-') return;
  check_child(plan, kOomScore, ::pwrite(file, "0", 1, 0) == 1);
}

// Everything before the program.
void arrange_child(const ChildPlan& plan) {
  enter_session(plan);
  reset_signals(plan);
  arrange_descriptors(plan);
  if (plan.request.open_files) {
    check_child(plan, kLimits, ::setrlimit(RLIMIT_NOFILE, &*plan.request.open_files) == 0);
  }
  for (const ResourceLimit& limit : plan.request.limits) {
    const rlimit both = {.rlim_cur = limit.value, .rlim_max = limit.value};
    check_child(
        plan, kLimits, ::setrlimit(static_cast<__rlimit_resource>(limit.resource), &both) == 0);
  }
  if (!plan.request.cpus.empty()) {
    check_child(plan, kAffinity, ::sched_setaffinity(0, sizeof plan.cpus, &plan.cpus) == 0);
  }
  choose_memory(plan);
  if (plan.request.drops_oom_protection) drop_oom_protection(plan);
  if (plan.request.credentials) become(plan, *plan.request.credentials);
  if (plan.request.die_with_parent) {
    check_child(plan, kDeathSignal, ::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    errno = ESRCH;
    check_child(plan, kParentGone, ::getppid() == plan.parent);
  }
  if (!plan.request.cwd.empty()) check_child(plan, kChdir, ::chdir(plan.request.cwd.c_str()) == 0);
}

[[noreturn]] void run_child(const ChildPlan& plan) {
  arrange_child(plan);
  ::execve(plan.path, plan.argv, plan.envp);
  fail_child(plan, kExecve);
}

// Returns the pid in the parent, 0 in the child, -1 with errno.
pid_t clone_process(int* pidfd, int cgroup_fd) {
  clone_args args{};
  args.flags = CLONE_PIDFD | CLONE_CLEAR_SIGHAND;
  args.pidfd = reinterpret_cast<std::uintptr_t>(pidfd);
  args.exit_signal = SIGCHLD;
  if (cgroup_fd >= 0) {
    args.flags |= CLONE_INTO_CGROUP;
    args.cgroup = static_cast<std::uint64_t>(cgroup_fd);
  }
  return static_cast<pid_t>(::syscall(SYS_clone3, &args, sizeof args));
}

// As clone_process(), for kernels and containers without clone3.
pid_t fork_process(int* pidfd) {
  const pid_t pid = ::fork();
  if (pid > 0) *pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  return pid;
}

pid_t start_child(const SpawnRequest& request, int* pidfd) {
  if (request.method == SpawnMethod::kAuto) {
    const pid_t pid = clone_process(pidfd, request.cgroup_fd);
    if (pid >= 0 || (errno != ENOSYS && errno != EPERM) || request.cgroup_fd >= 0) return pid;
  }
  return fork_process(pidfd);
}

// Moves descriptors that would be overwritten while 0, 1 and 2 are being filled out of the way.
bool lift_stdio(std::array<int, 3>& stdio, std::array<UniqueFd, 3>& lifted) {
  for (int target = 0; target < 3; ++target) {
    if (stdio[target] > 2 || stdio[target] == target) continue;
    lifted[target].reset(::fcntl(stdio[target], F_DUPFD_CLOEXEC, 3));
    if (!lifted[target]) return false;
    stdio[target] = lifted[target].get();
  }
  return true;
}

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> flatten(const EnvMap& env) {
  std::vector<std::string> flat;
  flat.reserve(env.size());
  for (const auto& [name, value] : env) flat.push_back(name + "=" + value);
  return flat;
}

cpu_set_t cpu_set(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) {
    if (cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  }
  return set;
}

// A preference is for one node.
MemoryNodes memory_nodes(const SpawnRequest& request) {
  MemoryNodes mask{};
  for (const int node : request.memory_nodes) {
    const auto at = static_cast<std::size_t>(node);
    mask.at(at / kBitsOfWord) |= 1UL << (at % kBitsOfWord);
    if (!request.bind_memory) break;
  }
  return mask;
}

bool is_executable_file(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

std::string path_of(const EnvMap& env) {
  const auto found = env.find("PATH");
  return found == env.end() ? "/usr/local/bin:/usr/bin:/bin" : found->second;
}

}  // namespace

std::optional<std::string> find_program(const std::string& name, const std::string& path) {
  if (name.find('/') != std::string::npos) return name;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find(':', begin), path.size());
    const std::string folder = end == begin ? "." : path.substr(begin, end - begin);
    std::string candidate = folder + "/" + name;
    if (is_executable_file(candidate)) return candidate;
    begin = end + 1;
  }
  return std::nullopt;
}

std::optional<ExecFailure> SpawnedProcess::exec_failure() {
  ChildReport report{};
  const ssize_t got = ::read(error_pipe_.get(), &report, sizeof report);
  error_pipe_.reset();
  if (got != static_cast<ssize_t>(sizeof report)) return std::nullopt;
  const bool is_known = report.stage >= 0 && report.stage <= kExecve;
  return ExecFailure{is_known ? kStageNames[report.stage] : "unknown", report.error_number};
}

SpawnResult spawn(const SpawnRequest& request) {
  const auto path = find_program(request.argv.at(0), path_of(request.env));
  if (!path) return ExecFailure{"find on PATH", ENOENT};
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC | O_NONBLOCK) != 0) return ExecFailure{"pipe2", errno};
  UniqueFd error_read(pipe[0]);
  const UniqueFd error_write(pipe[1]);
  std::array<int, 3> stdio = {request.stdio[0], request.stdio[1], request.stdio[2]};
  std::array<UniqueFd, 3> lifted;
  if (!lift_stdio(stdio, lifted)) return ExecFailure{"fcntl", errno};
  std::vector<std::string> argv = request.argv;
  std::vector<std::string> env = flatten(request.env);
  const std::vector<char*> argv_pointers = pointers_to(argv);
  const std::vector<char*> env_pointers = pointers_to(env);
  const ChildPlan plan = {.request = request,
                          .path = path->c_str(),
                          .argv = argv_pointers.data(),
                          .envp = env_pointers.data(),
                          .stdio = stdio,
                          .error_fd = error_write.get(),
                          .parent = ::getpid(),
                          .cpus = cpu_set(request.cpus),
                          .memory_nodes = memory_nodes(request)};
  int pidfd = -1;
  const pid_t pid = start_child(request, &pidfd);
  if (pid == 0) run_child(plan);
  if (pid < 0) return ExecFailure{"clone", errno};
  // The child does it too; whoever is first: from now on it gets what the terminal sends to its group.
  if (request.session == Session::kJoin) (void)::setpgid(pid, request.join_group);
  return SpawnedProcess(pid, UniqueFd(pidfd), std::move(error_read));
}

void enter_worker(const SpawnRequest& request, int error_fd, pid_t parent) {
  const ChildPlan plan = {.request = request,
                          .path = nullptr,
                          .argv = nullptr,
                          .envp = nullptr,
                          .stdio = {request.stdio[0], request.stdio[1], request.stdio[2]},
                          .error_fd = error_fd,
                          .parent = parent,
                          .cpus = cpu_set(request.cpus),
                          .memory_nodes = memory_nodes(request)};
  if (request.cgroup_fd >= 0) {
    const UniqueFd members(::openat(request.cgroup_fd, "cgroup.procs", O_WRONLY | O_CLOEXEC));
    check_child(plan, kCgroup, members && ::write(members.get(), "0", 1) == 1);
  }
  arrange_child(plan);
}

}  // namespace accel::supervisor
