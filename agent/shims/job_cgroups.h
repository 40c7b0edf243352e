// JobCgroups: a cgroup (version 2) for each shim of this agent, made before it and handed to its user.
//
//   <base>/accel-agent-<state folder>-<name of its record>.<8 digits>      see runtime/supervisor/owner/delegated_cgroup.h
//
// `base` is the cgroup above the agent's when the agent is in a seat (DelegateSubgroup=accel-main of its unit), else its own.
// Only the first can hand controllers down, and so have limits: a cgroup with processes cannot. An agent does not move
// itself to a seat: a service manager that starts it anew beside jobs that it left would find a cgroup that takes no
// process any more.
//
// The name has the inode of the state folder, which no two agents share: what is there at the start, has this agent's name
// and is not of a job that goes on is a dead job's.
//
// Threads:  the one that runs the io_context; a few system calls on kernfs. remove_others(), at the start, may wait 2 s for
//           processes that have got SIGKILL.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <accel/result.h>

#include "runtime/supervisor/spawn/spawner.h"
#include "runtime/system.h"

namespace accel::agent {

class JobCgroups {
 public:
  // base      where they are made; empty: nowhere.
  // max_pids  of each; 0: no limit.
  JobCgroups(std::string base, const std::string& state_dir, int max_pids);
  // Below the caller's own cgroup, when processes can be started there.
  [[nodiscard]] static JobCgroups below_own(System& system,
                                            const std::string& state_dir,
                                            int max_pids);

  [[nodiscard]] bool are_there() const { return !base_.empty(); }

  // Makes one, for the job whose record has this name; empty where none can be made and no limit is asked for. user: as make_delegated_cgroup().
  // Errors  kUnsupported: the limit cannot be set.
  [[nodiscard]] Result<std::string> make(const std::string& name,
                                         const std::optional<supervisor::Credentials>& user);

  // Of the job whose record has this name; empty: there is none.
  [[nodiscard]] std::string find(const std::string& name) const;

  // Of a shim that never was, or is gone. Nothing when there is none. What SIGKILL has not ended yet is looked at again with
  // the next job that comes or goes: the loop waits for no process.
  void remove(const std::string& folder);

  // It is of a job that goes on: remove_others() leaves it alone.
  void keep(const std::string& folder);
  // Kills and removes what the agent before this one left, but for what is kept. Returns how many there were.
  int remove_others() const;

 private:
  [[nodiscard]] std::vector<std::string> all() const;
  void end_some();

  std::string base_;
  std::string prefix_;  // of all names
  int max_pids_;
  std::set<std::string> kept_;
  std::set<std::string> ending_;  // removed, but for processes that have got SIGKILL
};

}  // namespace accel::agent
