// JobCgroup: the cgroups (version 2) of one job, where the machine lets us make some.
//
//   <base>/accel-job-<id>[@<node>][.<instance>]/rank-<local rank>
//
// `base` is the cgroup that the shim was started in, or the one above where an agent made it a seat
// (delegated_cgroup.h). It can be used when it is writable: delegated by an agent, systemd or SLURM, or in a
// container of root's. A worker is born in the cgroup of its rank, and nothing
// that it starts can leave it without a right that the job does not have: neither setsid, nor forking
// twice, nor dropping the environment helps. So the cgroup is killed as a whole (cgroup.kill), and what
// is in it is found by its cgroup.procs.
//
// Limits need the controllers memory and pids, which a cgroup that has processes of its own cannot hand
// down. They are there when whoever made `base` has enabled them, or when nothing but us is in it.
//
// The shim holds a lock on the job's folder for as long as it lives. A folder that can be locked is that
// of a dead job: the next job that starts beside it kills what is left there and removes it.
//
// Threads:  the supervisor's; each call is a few system calls on kernfs, which never wait for a disk.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accel/result.h>

#include "runtime/supervisor/protocol/job_spec.h"
#include "runtime/system.h"
#include "runtime/unique_fd.h"

namespace accel::supervisor {

// A cgroup of this name is there for the one who divides the cgroup above it: one with processes of its own can hand no
// controllers down. Ours are made by delegated_cgroup.h, or by systemd (DelegateSubgroup= of the agent's unit).
inline constexpr std::string_view kCgroupSeat = "accel-main";

// Where the calling process may make cgroups: its own, or the one above when its own is a seat. Empty when it may not.
// Never a hierarchy of version 1.
[[nodiscard]] std::string find_cgroup_base(System& system);

// node_id   empty unless several nodes of a job may be on one machine.
// instance  empty for a job of a build that knew none.
[[nodiscard]] std::string job_cgroup_path(const std::string& base,
                                          const std::string& job_id,
                                          const std::string& node_id,
                                          const std::string& instance);

// Whether a process can be started in the cgroup of this folder's descriptor; starts one that ends at once.
[[nodiscard]] bool can_start_in_cgroup(int folder_fd);

class JobCgroup {
 public:
  // Removes what dead jobs left below `base`, makes the folders of this one, and tries whether a process
  // can be started in them (a seccomp filter, or the kernel's count of kills, may be against it).
  // Errors  kFileIo: they cannot be made. kUnsupported: no process can be started there; or the limits
  //         ask for a controller that is not there, and the message names the file.
  [[nodiscard]] static Result<JobCgroup> create(System& system,
                                                const std::string& base,
                                                const JobSpec& spec,
                                                bool (*can_start_in)(int) = can_start_in_cgroup);
  ~JobCgroup();  // removes the folders that are empty
  JobCgroup(JobCgroup&& other) noexcept = default;
  JobCgroup& operator=(JobCgroup&&) = delete;

  // For SpawnRequest::cgroup_fd.
  [[nodiscard]] int fd_of(int local_rank) const;

  // For SweepScope::cgroups.
  [[nodiscard]] std::vector<std::string> folders() const;

  // SIGKILL to everything in the rank's cgroup.
  void kill(int local_rank);

  // Forgets the OOM kills of the generation before, and makes those cgroups anew that were killed: Linux
  // 6.18 ends a process that is started into one (it compares the target's count of kills with that of
  // the parent's cgroup). Requires: no process of the generation before is left.
  void begin_generation();

  // Whether the kernel killed a process of this rank for lack of memory in this generation;
  // std::nullopt when its cgroup does not count that.
  [[nodiscard]] std::optional<bool> ran_out_of_memory(int local_rank) const;

 private:
  struct Rank {
    std::string folder;
    UniqueFd fd;
    std::optional<std::uint64_t> oom_kills_before;
    bool was_killed = false;
  };

  JobCgroup(System& system, std::string folder, UniqueFd lock, LimitPolicy limits)
      : system_(&system), folder_(std::move(folder)), lock_(std::move(lock)), limits_(limits) {}
  [[nodiscard]] Result<Rank> make_rank(int local_rank) const;

  System* system_;
  std::string folder_;  // empty once moved from
  UniqueFd lock_;       // the folder, locked
  LimitPolicy limits_;
  std::map<int, Rank> ranks_;
};

// 0, or errno. Control files are never created: one that is not there is a controller that is not.
int write_control(const std::string& path, std::string_view text);

// The folders in `folder`: the cgroups right below it.
[[nodiscard]] std::vector<std::string> folders_in(const std::string& folder);

// Removes this cgroup and those below it; whether everything is gone. Those with processes stay.
bool remove_cgroups(const std::string& folder);

// Kills what is in the cgroups of a job whose shim is dead, and removes them; waits at most 100 ms for
// processes to end. False when something is left. True as well when there are none.
bool remove_job_cgroup(const std::string& folder);

}  // namespace accel::supervisor
