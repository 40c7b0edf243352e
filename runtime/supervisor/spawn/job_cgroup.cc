#include "runtime/supervisor/spawn/job_cgroup.h"

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/sched.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/cgroup_folder.h"
#include "runtime/open_folder.h"
#include "runtime/supervisor/spawn/exit_report.h"

namespace accel::supervisor {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kJobPrefix = "accel-job-";

bool is_same_folder(int fd, const std::string& path) {
  struct stat one = {};
  struct stat other = {};
  return ::fstat(fd, &one) == 0 && ::stat(path.c_str(), &other) == 0 &&
         one.st_ino == other.st_ino && one.st_dev == other.st_dev;
}

// The folders of jobs whose shim does not hold them any more.
void remove_dead_jobs(const std::string& base) {
  for (const std::string& folder : folders_in(base)) {
    if (!fs::path(folder).filename().string().starts_with(kJobPrefix)) continue;
    const UniqueFd lock = open_folder(folder);
    if (lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) (void)remove_job_cgroup(folder);
  }
}

// Another job that starts now may take a folder that is not locked yet for a dead one's: then again.
Result<UniqueFd> make_locked_folder(const std::string& folder) {
  for (int attempt = 0; attempt < 3; ++attempt) {
    if (::mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST) break;
    UniqueFd lock = open_folder(folder);
    if (!lock) continue;
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) break;
    if (is_same_folder(lock.get(), folder)) return lock;
  }
  return Error(ErrorCode::kFileIo, "cannot make the cgroup " + folder + ": " + errno_text(errno));
}

}  // namespace

std::string find_cgroup_base(System& system) {
  const auto mountinfo = system.read_file("/proc/self/mountinfo");
  const auto cgroup = system.read_file("/proc/self/cgroup");
  if (!mountinfo || !cgroup) return {};
  std::string folder = cgroup_folder(*mountinfo, *cgroup);
  if (fs::path(folder).filename() == kCgroupSeat) folder = fs::path(folder).parent_path();
  struct statfs info = {};
  if (folder.empty() || ::statfs(folder.c_str(), &info) != 0) return {};
  const bool is_usable = info.f_type == CGROUP2_SUPER_MAGIC &&
                         ::access(folder.c_str(), W_OK | X_OK) == 0 &&
                         ::access((folder + "/cgroup.procs").c_str(), W_OK) == 0;
  return is_usable ? folder : std::string();
}

std::string job_cgroup_path(const std::string& base,
                            const std::string& job_id,
                            const std::string& node_id,
                            const std::string& instance) {
  return base + "/" + std::string(kJobPrefix) + job_id + (node_id.empty() ? "" : "@" + node_id) +
         (instance.empty() ? "" : "." + instance);
}

int write_control(const std::string& path, std::string_view text) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) return errno;
  return ::write(fd.get(), text.data(), text.size()) < 0 ? errno : 0;
}

std::vector<std::string> folders_in(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code ignored;
  for (fs::directory_iterator entry(folder, ignored), end; !ignored && entry != end;
       entry.increment(ignored)) {
    if (entry->is_directory(ignored)) found.push_back(entry->path().string());
  }
  return found;
}

bool remove_cgroups(const std::string& folder) {
  for (const std::string& child : folders_in(folder)) remove_cgroups(child);
  return ::rmdir(folder.c_str()) == 0 || errno == ENOENT;
}

bool can_start_in_cgroup(int folder_fd) {
  int pidfd = -1;
  clone_args args{};
  args.flags = CLONE_PIDFD | CLONE_INTO_CGROUP;
  args.pidfd = reinterpret_cast<std::uintptr_t>(&pidfd);
  args.cgroup = static_cast<std::uint64_t>(folder_fd);
  const long pid =
      ::syscall(SYS_clone3, &args, sizeof args);  // no exit signal: nobody else hears of it
  if (pid == 0) ::_exit(0);
  if (pid < 0) return false;
  const UniqueFd child(pidfd);
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | __WALL) != 0) {
    if (errno != EINTR) return false;
  }
  return info.si_code == CLD_EXITED;
}

Result<JobCgroup> JobCgroup::create(System& system,
                                    const std::string& base,
                                    const JobSpec& spec,
                                    bool (*can_start_in)(int)) {
  remove_dead_jobs(base);
  const std::string folder = job_cgroup_path(base, spec.job_id, spec.node_id, spec.instance);
  auto lock = make_locked_folder(folder);
  if (!lock) return std::move(lock).error();
  JobCgroup cgroup(system, folder, *std::move(lock), spec.limits);
  if (spec.limits.any_of_cgroup()) {
    // Whether it worked shows when the limits are written.
    for (const std::string& parent : {base, folder}) {
      for (const char* controller : {"+memory", "+pids"}) {
        write_control(parent + "/cgroup.subtree_control", controller);
      }
    }
  }
  for (const WorkerSpec& worker : spec.workers) {
    auto rank = cgroup.make_rank(worker.local_rank);
    if (!rank) return std::move(rank).error();
    cgroup.ranks_.emplace(worker.local_rank, *std::move(rank));
  }
  if (!can_start_in(cgroup.ranks_.begin()->second.fd.get())) {
    return Error(ErrorCode::kUnsupported, "no process can be started in the cgroup " + folder);
  }
  return cgroup;
}

Result<JobCgroup::Rank> JobCgroup::make_rank(int local_rank) const {
  Rank rank{.folder = folder_ + "/rank-" + std::to_string(local_rank)};
  if (::mkdir(rank.folder.c_str(), 0755) == 0 || errno == EEXIST)
    rank.fd = open_folder(rank.folder);
  if (!rank.fd) {
    return Error(ErrorCode::kFileIo,
                 "cannot make the cgroup " + rank.folder + ": " + errno_text(errno));
  }
  // Without the third a rank beyond its memory goes on in the swap. A kernel that has none has no such file.
  struct Wanted {
    const char* file;
    std::uint64_t value;
    bool is_asked;
    bool may_be_missing;
  };
  const Wanted all_wanted[] = {
      {"memory.max", limits_.memory_bytes, limits_.memory_bytes > 0, false},
      {"pids.max", limits_.pids, limits_.pids > 0, false},
      {"memory.swap.max", 0, limits_.memory_bytes > 0, true}};
  for (const auto& [file, value, is_asked, may_be_missing] : all_wanted) {
    if (!is_asked) continue;
    const int error = write_control(rank.folder + "/" + file, std::to_string(value));
    if (error == 0 || (error == ENOENT && may_be_missing)) continue;
    return Error(ErrorCode::kUnsupported,
                 "the limit " + std::string(file) + " = " + std::to_string(value) +
                     " cannot be set: " + rank.folder + "/" + file + ": " + errno_text(error),
                 "run below a cgroup that hands the controllers memory and pids down, or without "
                 "limits");
  }
  // A rank that loses one of its processes is of no use: let the kernel end it whole.
  if (limits_.memory_bytes > 0) write_control(rank.folder + "/memory.oom.group", "1");
  return rank;
}

JobCgroup::~JobCgroup() {
  if (!lock_) return;
  remove_cgroups(folder_);
}

int JobCgroup::fd_of(int local_rank) const {
  return ranks_.at(local_rank).fd.get();
}

std::vector<std::string> JobCgroup::folders() const {
  std::vector<std::string> folders;
  for (const auto& [local_rank, rank] : ranks_) folders.push_back(rank.folder);
  return folders;
}

void JobCgroup::kill(int local_rank) {
  Rank& rank = ranks_.at(local_rank);
  rank.was_killed = write_control(rank.folder + "/cgroup.kill", "1") == 0 || rank.was_killed;
}

void JobCgroup::begin_generation() {
  for (auto& [local_rank, rank] : ranks_) {
    if (rank.was_killed && ::rmdir(rank.folder.c_str()) == 0) {
      if (auto made = make_rank(local_rank)) rank = *std::move(made);
    }
    rank.oom_kills_before = count_oom_kills_in(*system_, rank.folder);
  }
}

std::optional<bool> JobCgroup::ran_out_of_memory(int local_rank) const {
  const Rank& rank = ranks_.at(local_rank);
  const auto now = count_oom_kills_in(*system_, rank.folder);
  if (!now || !rank.oom_kills_before) return std::nullopt;
  return *now > *rank.oom_kills_before;
}

bool remove_job_cgroup(const std::string& folder) {
  constexpr int kMostTries = 20;
  if (remove_cgroups(folder)) return true;
  write_control(folder + "/cgroup.kill", "1");
  for (int tries = 0; tries < kMostTries; ++tries) {
    if (remove_cgroups(folder)) return true;
    ::poll(nullptr, 0, 5);
  }
  return false;
}

}  // namespace accel::supervisor
