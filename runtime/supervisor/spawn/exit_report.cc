#include "runtime/supervisor/spawn/exit_report.h"

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstring>

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/supervisor/kernel/process_table.h"

namespace accel::supervisor {
namespace {

constexpr int kExitCodeOfExecFailure = 127;

// The number behind "`name` " in a file of "name value" lines.
std::optional<std::uint64_t> find_counter(std::string_view content, std::string_view name) {
  while (!content.empty()) {
    const std::string_view line = content.substr(0, content.find('\n'));
    content.remove_prefix(std::min(line.size() + 1, content.size()));
    if (!line.starts_with(name) || line.size() <= name.size() || line[name.size()] != ' ') continue;
    std::uint64_t value = 0;
    const char* begin = line.data() + name.size() + 1;
    if (std::from_chars(begin, line.data() + line.size(), value).ec == std::errc{}) return value;
  }
  return std::nullopt;
}

// The files that count the OOM kills of a process with this /proc/PID/cgroup, most specific first.
std::vector<std::string> oom_counters(std::string_view cgroups) {
  std::vector<std::string> files;
  while (!cgroups.empty()) {
    const std::string_view line = cgroups.substr(0, cgroups.find('\n'));
    cgroups.remove_prefix(std::min(line.size() + 1, cgroups.size()));
    const std::size_t controllers = line.find(':');
    const std::size_t path = line.find(':', controllers + 1);
    if (controllers == std::string_view::npos || path == std::string_view::npos) continue;
    const std::string_view names = line.substr(controllers + 1, path - controllers - 1);
    const std::string folder(line.substr(path + 1));
    if (names.empty()) files.push_back("/sys/fs/cgroup" + folder + "/memory.events");
    if (names == "memory")
      files.push_back("/sys/fs/cgroup/memory" + folder + "/memory.oom_control");
  }
  return files;
}

void set_cause(WorkerExit& exit, const ExitEvidence& evidence) {
  if (evidence.exec_failure) {
    exit.cause = ExitCause::kExecFailed;
    exit.stage = evidence.exec_failure->stage;
    exit.error_number = evidence.exec_failure->error_number;
  } else if (exit.signal == 0 && exit.exit_code == 0) {
    exit.cause = ExitCause::kOk;
  } else if (evidence.was_stopped) {
    exit.cause = ExitCause::kStoppedByUs;
  } else if (exit.signal == SIGKILL && evidence.memory_ran_out) {
    exit.cause = ExitCause::kOutOfMemory;
  } else {
    exit.cause = exit.signal != 0 ? ExitCause::kSignaled : ExitCause::kNonZero;
  }
}

}  // namespace

bool WaitStatus::is_success() const noexcept {
  return code == CLD_EXITED && status == 0;
}

std::optional<WaitStatus> peek_ended_child() {
  siginfo_t info{};
  if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) {
    return std::nullopt;
  }
  return WaitStatus{.pid = info.si_pid, .code = info.si_code, .status = info.si_status};
}

std::optional<StopChange> take_stop_change() {
  siginfo_t info{};
  if (::waitid(P_ALL, 0, &info, WSTOPPED | WCONTINUED | WNOHANG) != 0 || info.si_pid == 0) {
    return std::nullopt;
  }
  return StopChange{info.si_pid, info.si_code != CLD_CONTINUED};
}

bool has_children() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

bool has_children_besides(System& system, pid_t spared) {
  const std::vector<ProcessEntry> table = read_process_table(system);
  return std::any_of(table.begin(), table.end(), [&](const ProcessEntry& entry) {
    return entry.parent == ::getpid() && entry.pid != spared;
  });
}

// The system call takes a struct rusage that glibc's waitid() hides.
std::optional<WaitStatus> reap_child(pid_t pid) {
  siginfo_t info{};
  rusage usage{};
  if (::syscall(SYS_waitid, P_PID, pid, &info, WEXITED | WNOHANG, &usage) != 0 ||
      info.si_pid == 0) {
    return std::nullopt;
  }
  return WaitStatus{.pid = pid,
                    .code = info.si_code,
                    .status = info.si_status,
                    .peak_rss_bytes = static_cast<std::uint64_t>(usage.ru_maxrss) * 1024};
}

WorkerExit describe_exit(const WaitStatus& status, const ExitEvidence& evidence) {
  WorkerExit exit;
  exit.pid = status.pid;
  exit.peak_rss_bytes = status.peak_rss_bytes;
  if (status.code == CLD_EXITED) {
    exit.exit_code = status.status;
  } else {
    exit.signal = status.status;
    exit.core_dumped = status.code == CLD_DUMPED;
    if (exit.core_dumped) exit.core_path = evidence.core_path;
  }
  set_cause(exit, evidence);
  return exit;
}

bool names_missing_library(std::string_view tail) {
  return tail.find("error while loading shared libraries:") != std::string_view::npos;
}

std::string expand_core_pattern(
    std::string_view pattern, bool core_uses_pid, pid_t pid, int signal, const std::string& cwd) {
  if (pattern.empty() || pattern[0] == '|') return {};
  std::string path;
  bool has_pid = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%') {
      path += pattern[i];
      continue;
    }
    if (++i == pattern.size()) break;
    switch (pattern[i]) {
      case '%':
        path += '%';
        break;
      case 'p':
        path += std::to_string(pid);
        has_pid = true;
        break;
      case 's':
        path += std::to_string(signal);
        break;
      case 'u':
        path += std::to_string(::getuid());
        break;
      case 'g':
        path += std::to_string(::getgid());
        break;
      default:
        return {};  // time, thread, name at the moment of death: only the kernel knows
    }
  }
  if (core_uses_pid && !has_pid) path += "." + std::to_string(pid);
  if (path.empty() || path[0] == '/') return path;
  return cwd.empty() ? std::string() : cwd + "/" + path;
}

std::string core_path_of(System& system, pid_t pid, int signal, const std::string& cwd) {
  auto pattern = system.read_file("/proc/sys/kernel/core_pattern");
  if (!pattern) return {};
  while (!pattern->empty() && pattern->back() == '\n') pattern->pop_back();
  const auto uses_pid = system.read_file("/proc/sys/kernel/core_uses_pid");
  return expand_core_pattern(*pattern, uses_pid && uses_pid->starts_with("1"), pid, signal, cwd);
}

std::optional<std::uint64_t> count_oom_kills(System& system) {
  const auto cgroups = system.read_file("/proc/self/cgroup");
  if (!cgroups) return std::nullopt;
  for (const std::string& file : oom_counters(*cgroups)) {
    const auto content = system.read_file(file);
    if (!content) continue;
    if (const auto count = find_counter(*content, "oom_kill")) return count;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> count_oom_kills_in(System& system, const std::string& cgroup) {
  const auto content = system.read_file(cgroup + "/memory.events");
  return content ? find_counter(*content, "oom_kill") : std::nullopt;
}

int shell_exit_code(const WorkerExit& exit) {
  constexpr int kExitCodeOfHang = 124;  // as timeout(1)
  constexpr int kSignalBase = 128;
  if (exit.cause == ExitCause::kExecFailed) {
    const int number = exit.error_number;
    if (number == EMFILE || number == ENFILE || number == EAGAIN)
      return error_info(ErrorCode::kSpawnFailed).exit_status;
    return exit.error_number == EACCES || exit.error_number == ENOEXEC ? 126
                                                                       : kExitCodeOfExecFailure;
  }
  if (exit.cause == ExitCause::kHang) return kExitCodeOfHang;
  if (exit.cause == ExitCause::kUnkillable || exit.cause == ExitCause::kLost) {
    return kSignalBase + SIGKILL;
  }
  return exit.signal != 0 ? kSignalBase + exit.signal : exit.exit_code;
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? "SIG" + std::string(name) : "signal " + std::to_string(signal);
}

}  // namespace accel::supervisor
