#include "runtime/supervisor/spawn/oom_counters.h"

#include <algorithm>
#include <utility>

#include "runtime/cgroup_folder.h"
#include "runtime/supervisor/spawn/exit_report.h"

namespace accel::supervisor {
namespace {

bool is_in(const std::string& folder, const std::string& above) {
  return !above.empty() && folder.starts_with(above) &&
         (folder.size() == above.size() || folder[above.size()] == '/');
}

}  // namespace

bool OomCounters::grew(System& system, pid_t pid, const std::vector<std::string>& covered) {
  const auto mountinfo = system.read_file("/proc/self/mountinfo");
  const auto cgroup = system.read_file("/proc/" + std::to_string(pid) + "/cgroup");
  if (!mountinfo || !cgroup) return false;
  const std::string folder = cgroup_folder(*mountinfo, *cgroup);
  const auto holds = [&](const std::string& above) { return is_in(folder, above); };
  if (folder.empty() || std::ranges::any_of(covered, holds)) return false;
  const auto count = count_oom_kills_in(system, folder);
  return count && *count > std::exchange(seen_[folder], *count);
}

}  // namespace accel::supervisor
