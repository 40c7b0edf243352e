// The supervisor's use of the job's cgroups: made before the first worker, killed beside the process groups,
// asked for the cause of an end. Everything works without them, but limits.

#include <utility>

#include "runtime/cgroup_folder.h"
#include "runtime/supervisor/shim/supervisor_impl.h"

namespace accel::supervisor {

// Without limits a machine that has none to give is as good.
Result<void> Supervisor::Impl::make_cgroup() {
  const std::string base = find_cgroup_base(system_);
  Result<JobCgroup> made =
      base.empty()
          ? Result<JobCgroup>(
                Error(ErrorCode::kUnsupported,
                      "the job has limits, and there is no cgroup (version 2) that it may divide",
                      "run below a delegated cgroup (systemd's Delegate=yes), or without limits"))
          : JobCgroup::create(system_, base, spec_);
  if (made) {
    cgroup_.emplace(*std::move(made));
    scope_.cgroups = cgroup_->folders();
  } else if (spec_.limits.any_of_cgroup()) {
    return std::move(made).error();
  }
  return {};
}

void Supervisor::Impl::kill_cgroup(const Worker& worker) {
  if (cgroup_) cgroup_->kill(worker.spec->local_rank);
}

// Where it was born, or in a cgroup that it moved itself to.
bool Supervisor::Impl::ran_out_of_memory(const Worker& worker) {
  const auto counted = cgroup_ ? cgroup_->ran_out_of_memory(worker.spec->local_rank) : std::nullopt;
  if (counted ? *counted : count_oom_kills(system_) > oom_kills_before_) return true;
  std::vector<std::string> covered = scope_.cgroups;
  const auto ours = cgroup_folders(system_, "");
  if (!ours.empty() && count_oom_kills_in(system_, ours.front())) covered.push_back(ours.front());
  return oom_counters_.grew(system_, worker.process->pid(), covered);
}

}  // namespace accel::supervisor
