#include "runtime/supervisor/owner/delegated_cgroup.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <filesystem>

#include <linux/magic.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "runtime/clock.h"
#include "runtime/split.h"
#include "runtime/supervisor/kernel/process_table.h"
#include "runtime/supervisor/spawn/exit_report.h"
#include "runtime/supervisor/spawn/job_cgroup.h"
#include "runtime/supervisor/stop/orphan_sweep.h"

namespace accel::supervisor {
namespace {

namespace fs = std::filesystem;

// What a user may make below its folder: a rank each for 1024 workers, and launchers in launchers.
constexpr std::string_view kMostCgroups = "4096";
constexpr std::string_view kMostDepth = "16";

std::string seat_of(const std::string& folder) {
  return folder + "/" + std::string(kCgroupSeat);
}

Error cannot_make(const std::string& folder) {
  return Error(ErrorCode::kFileIo, "cannot make the cgroup " + folder + ": " + errno_text(errno));
}

bool hand_over(const std::string& folder, const Credentials& user) {
  for (const char* name : {"", "/cgroup.procs", "/cgroup.threads", "/cgroup.subtree_control"}) {
    if (::lchown((folder + name).c_str(), user.uid, user.gid) != 0) return false;
  }
  return true;
}

Result<void> set_up(const std::string& folder,
                    const std::optional<Credentials>& user,
                    const std::vector<CgroupLimit>& limits) {
  if (::mkdir(seat_of(folder).c_str(), 0755) != 0) return cannot_make(folder);
  // Of kernel 4.14; without them a user could only make many.
  write_control(folder + "/cgroup.max.descendants", kMostCgroups);
  write_control(folder + "/cgroup.max.depth", kMostDepth);
  for (const CgroupLimit& limit : limits) {
    const int error = write_control(folder + "/" + limit.file, std::to_string(limit.value));
    if (error == 0) continue;
    return Error(ErrorCode::kUnsupported,
                 "the limit " + limit.file + " = " + std::to_string(limit.value) +
                     " cannot be set: " + folder + "/" + limit.file + ": " + errno_text(error));
  }
  // Last: what belongs to the user may change under us.
  if (user && !hand_over(folder, *user)) return cannot_make(folder);
  return {};
}

bool is_cgroup(const std::string& folder) {
  struct statfs info = {};
  return ::statfs(folder.c_str(), &info) == 0 && info.f_type == CGROUP2_SUPER_MAGIC;
}

// Of this cgroup and those below it. One that is not there, in one that is, has nothing. std::nullopt: nobody knows.
std::optional<bool> is_populated(System& system, const std::string& folder) {
  const auto events = system.read_file(folder + "/cgroup.events");
  if (!events) {
    const bool is_removed = ::access(folder.c_str(), F_OK) != 0 && errno == ENOENT;
    if (is_removed && is_cgroup(fs::path(folder).parent_path())) return false;
    return std::nullopt;
  }
  for (const std::string_view line : split(*events, '\n')) {
    if (line.starts_with("populated ")) return line != "populated 0";
  }
  return std::nullopt;
}

void add_pids_in(System& system, const std::string& folder, std::vector<pid_t>& pids) {
  if (const auto content = system.read_file(folder + "/cgroup.procs")) {
    for (const std::string_view line : split(*content, '\n')) {
      pid_t pid = 0;
      const auto parsed = std::from_chars(line.data(), line.data() + line.size(), pid);
      if (parsed.ec == std::errc{} && pid > 0) pids.push_back(pid);
    }
  }
  for (const std::string& child : folders_in(folder)) add_pids_in(system, child, pids);
}

// Without those that have ended, and wait to be reaped.
std::vector<ProcessEntry> processes_in(System& system, const std::string& folder) {
  std::vector<pid_t> pids;
  add_pids_in(system, folder, pids);
  std::vector<ProcessEntry> found;
  for (const pid_t pid : pids) {
    const auto process = read_process(system, pid);
    if (process && process->state != 'Z' && process->state != 'X') found.push_back(*process);
  }
  return found;
}

// Kernels before 5.14 cannot kill a cgroup as a whole.
void kill_all_in(System& system, const std::string& folder) {
  if (write_control(folder + "/cgroup.kill", "1") == 0) return;
  for (const ProcessEntry& process : processes_in(system, folder))
    signal_stray(system, process, SIGKILL);
}

}  // namespace

Result<void> make_delegated_cgroup(const std::string& folder,
                                   const std::optional<Credentials>& user,
                                   const std::vector<CgroupLimit>& limits) {
  if (::mkdir(folder.c_str(), 0755) != 0) return cannot_make(folder);
  auto made = set_up(folder, user, limits);
  if (!made) remove_cgroups(folder);
  return made;
}

bool is_seat_taken(System& system, const std::string& folder) {
  return is_populated(system, seat_of(folder)).value_or(false);
}

std::optional<CgroupEnd> end_cgroup(System& system,
                                    const std::string& folder,
                                    std::chrono::milliseconds limit) {
  CgroupEnd end;
  SteadyClock clock;
  const TimePoint give_up_at = clock.now() + limit;
  auto populated = is_populated(system, folder);
  if (populated == true) {
    for (const ProcessEntry& process : processes_in(system, folder))
      end.killed.push_back({process.pid, read_command(system, process)});
  }
  while (populated == true) {
    kill_all_in(system, folder);
    if (clock.now() >= give_up_at) break;
    constexpr int kPauseMs = 2;
    ::poll(nullptr, 0, kPauseMs);
    populated = is_populated(system, folder);
  }
  if (!populated) return std::nullopt;
  if (*populated) end.num_left = std::max(1, static_cast<int>(processes_in(system, folder).size()));
  remove_cgroups(folder);
  return end;
}

}  // namespace accel::supervisor
