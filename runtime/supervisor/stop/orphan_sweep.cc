#include "runtime/supervisor/stop/orphan_sweep.h"

#include <algorithm>
#include <charconv>
#include <csignal>
#include <unordered_map>

#include <sys/wait.h>
#include <unistd.h>

namespace accel::supervisor {
namespace {

using namespace std::chrono_literals;

constexpr Duration kFirstWait = 1ms;
constexpr Duration kLongestWait = 50ms;
constexpr int kEmptyScansWanted = 2;
constexpr Duration kUnreadLimit = 200ms;  // an ordinary wait for a disk is over by then

// `roots` and the pids below them in the tree of `table`.
std::unordered_set<pid_t> pids_below(const std::vector<pid_t>& roots,
                                     const std::vector<ProcessEntry>& table) {
  std::unordered_multimap<pid_t, pid_t> children;
  for (const ProcessEntry& entry : table) children.emplace(entry.parent, entry.pid);
  std::unordered_set<pid_t> found(roots.begin(), roots.end());
  std::vector<pid_t> to_visit = roots;
  while (!to_visit.empty()) {
    const pid_t parent = to_visit.back();
    to_visit.pop_back();
    const auto [begin, end] = children.equal_range(parent);
    for (auto child = begin; child != end; ++child) {
      if (found.insert(child->second).second) to_visit.push_back(child->second);
    }
  }
  return found;
}

bool has_tag(System& system, pid_t pid, const SweepScope& scope) {
  if (scope.job_id.empty()) return false;
  const auto environ = system.read_file("/proc/" + std::to_string(pid) + "/environ");
  if (!environ) return false;
  const auto carries = [&](const char* name, const std::string& value) {
    return value.empty() || find_in_environ(*environ, name) == value;
  };
  return carries("ACCEL_JOB_ID", scope.job_id) && carries("ACCEL_NODE_ID", scope.node_id) &&
         carries("ACCEL_JOB_INSTANCE", scope.instance);
}

// The pids in the cgroup.procs of each.
std::unordered_set<pid_t> members_of(System& system, const std::vector<std::string>& cgroups) {
  std::unordered_set<pid_t> members;
  for (const std::string& folder : cgroups) {
    const auto content = system.read_file(folder + "/cgroup.procs");
    if (!content) continue;
    const char* at = content->data();
    const char* const end = at + content->size();
    while (at < end) {
      pid_t pid = 0;
      const auto parsed = std::from_chars(at, end, pid);
      if (parsed.ec != std::errc{}) break;
      members.insert(pid);
      at = parsed.ptr + 1;  // behind the newline
    }
  }
  return members;
}

struct Search {
  std::vector<ProcessEntry> strays;
  std::vector<ProcessEntry> unread;
};

// A kernel thread (parent: kthreadd, 2) has no environment that could be waited for.
bool waits_uninterruptibly(const ProcessEntry& entry) {
  constexpr pid_t kKernelThreads = 2;
  return entry.state == 'D' && entry.parent != kKernelThreads;
}

Search search(System& system, const SweepScope& scope, const std::vector<ProcessEntry>& table) {
  const auto descendants = pids_below({scope.ancestor}, table);
  const auto members = members_of(system, scope.cgroups);
  Search found;
  for (const ProcessEntry& entry : table) {
    if (entry.pid == scope.ancestor || entry.pid == ::getpid() || entry.pid == scope.spared)
      continue;
    if (entry.state == 'Z' || entry.state == 'X' || entry.start_time < scope.started_at) continue;
    if (descendants.contains(entry.pid) || members.contains(entry.pid)) {
      found.strays.push_back(entry);
    } else if (waits_uninterruptibly(entry)) {
      found.unread.push_back(entry);
    } else if (has_tag(system, entry.pid, scope)) {
      found.strays.push_back(entry);
    }
  }
  return found;
}

}  // namespace

std::uint64_t own_start_time(System& system) {
  const auto self = read_process(system, ::getpid());
  return self ? self->start_time : 0;
}

std::vector<ProcessEntry> find_strays(System& system,
                                      const SweepScope& scope,
                                      const std::vector<ProcessEntry>& table) {
  return search(system, scope, table).strays;
}

std::vector<ProcessEntry> find_descendants(const std::vector<pid_t>& roots,
                                           const std::vector<ProcessEntry>& table) {
  const auto pids = pids_below(roots, table);
  std::vector<ProcessEntry> found;
  for (const ProcessEntry& entry : table) {
    if (pids.contains(entry.pid)) found.push_back(entry);
  }
  return found;
}

bool signal_stray(System& system, const ProcessEntry& stray, int signal) {
  const UniqueFd process = system.open_process(stray.pid);
  if (!process) return false;
  const auto current = read_process(system, stray.pid);
  if (!current || current->start_time != stray.start_time) return false;
  return system.signal_process(process.get(), signal) == 0;
}

OrphanSweep::OrphanSweep(System& system, SweepScope scope, Duration kill_wait)
    : system_(system), scope_(std::move(scope)), kill_wait_(kill_wait), wait_(kFirstWait) {}

OrphanSweep::Step OrphanSweep::step(TimePoint now) {
  last_scan_ = scan();
  if (last_scan_.empty() && !unread_.empty()) {
    if (leave_unread_at_ == TimePoint::max()) leave_unread_at_ = now + kUnreadLimit;
    if (now < leave_unread_at_) return search_again();
  }
  if (last_scan_.empty()) {
    if (++empty_scans_ >= kEmptyScansWanted) return {Verdict::kClean};
    return {Verdict::kScanAgain, Duration::zero()};
  }
  empty_scans_ = 0;
  if (give_up_at_ == TimePoint::max()) give_up_at_ = now + kill_wait_;
  for (const ProcessEntry& stray : last_scan_) {
    remember(stray);
    signal_stray(system_, stray, SIGKILL);
  }
  if (now >= give_up_at_) return {Verdict::kGaveUp};
  return search_again();
}

OrphanSweep::Step OrphanSweep::search_again() {
  return {Verdict::kScanAgain, std::exchange(wait_, std::min(2 * wait_, kLongestWait))};
}

// A process that is not of the job cannot become part of it: nobody moves into another's tree, and the
// tag is inherited. So what was found foreign once is not looked at again.
std::vector<ProcessEntry> OrphanSweep::scan() {
  const std::vector<ProcessEntry> table = read_process_table(system_, foreign_);
  auto [strays, unread] = search(system_, scope_, table);
  for (const ProcessEntry& entry : table) {
    const bool is_ended = entry.state == 'Z' || entry.state == 'X';  // its number may come again
    if (!is_ended) foreign_.insert(entry.pid);
  }
  for (const ProcessEntry& stray : strays) foreign_.erase(stray.pid);
  for (const ProcessEntry& process : unread) foreign_.erase(process.pid);
  foreign_.erase(scope_.ancestor);
  unread_ = std::move(unread);
  return std::move(strays);
}

std::vector<std::string> OrphanSweep::describe_last_scan() const {
  std::vector<std::string> texts;
  for (const ProcessEntry& stray : last_scan_) texts.push_back(describe(stray));
  return texts;
}

std::vector<std::string> OrphanSweep::describe_unread() const {
  std::vector<std::string> texts;
  for (const ProcessEntry& process : unread_) texts.push_back(describe(process));
  return texts;
}

std::string OrphanSweep::describe(const ProcessEntry& process) const {
  return "process " + std::to_string(process.pid) + " (" + read_command(system_, process) +
         ", state " + process.state + ")";
}

void OrphanSweep::remember(const ProcessEntry& stray) {
  const bool is_known = std::any_of(found_.begin(), found_.end(), [&](const Leftover& leftover) {
    return leftover.pid == stray.pid;
  });
  if (!is_known) found_.push_back({stray.pid, read_command(system_, stray)});
}

int reap_all_children() {
  int reaped = 0;
  while (::waitpid(-1, nullptr, WNOHANG) > 0) ++reaped;
  return reaped;
}

}  // namespace accel::supervisor
