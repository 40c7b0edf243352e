// DelegatedCgroup: a cgroup (version 2) that an owner of many jobs makes for one of them, and hands to the job's user.
//
//   <folder>/              limits stay the owner's: no user can raise them. The folder, cgroup.procs, cgroup.threads and
//                          cgroup.subtree_control are the user's, as the kernel's rules for delegation ask
//            accel-main/   the seat of the shim, which is born there; the owner's
//            accel-job-<id>.../rank-<n>   the shim's, for its workers (job_cgroup.h)
//
// Nothing of the job gets out: to move a process takes the right to write the cgroup.procs of a cgroup above both places,
// which is the owner's. So what is in here when the shim is dead is of the job, whatever it did to its tags, session and
// parents; it is killed as a whole, and `populated 0` in cgroup.events is the proof that nothing of it runs.
//
// Threads:  any. end_cgroup() waits; everything else is a few system calls on kernfs.
// Source:   Linux, Documentation/admin-guide/cgroup-v2.rst, "Delegation"; tests/integration/agent (Cgroups).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <accel/result.h>

#include "runtime/supervisor/protocol/job_outcome.h"
#include "runtime/supervisor/spawn/spawner.h"
#include "runtime/system.h"

namespace accel::supervisor {

struct CgroupLimit {
  std::string file;  // "pids.max"
  std::uint64_t value = 0;
};

// Requires: the folder above is a cgroup that may be divided; `folder` does not exist.
// user    whose job it is; empty: the caller's.
// Errors  kFileIo. kUnsupported: a limit cannot be set; the message names its file. Nothing is left then.
[[nodiscard]] Result<void> make_delegated_cgroup(const std::string& folder,
                                                 const std::optional<Credentials>& user,
                                                 const std::vector<CgroupLimit>& limits);

// The cgroup.procs of the seat has a process. False as well where there is no such folder.
[[nodiscard]] bool is_seat_taken(System& system, const std::string& folder);

struct CgroupEnd {
  std::vector<Leftover> killed;  // what was there, by name
  int num_left = 0;              // processes that SIGKILL has not ended
};

// Kills what is in `folder`, waits at most `limit` for its end (0: not at all), and removes it when it is empty. Nothing to do is an end too: no such folder,
// in a cgroup that is there. std::nullopt: no cgroup can be seen there, so nobody knows.
[[nodiscard]] std::optional<CgroupEnd> end_cgroup(System& system,
                                                  const std::string& folder,
                                                  std::chrono::milliseconds limit);

}  // namespace accel::supervisor
