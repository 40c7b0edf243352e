#include "runtime/supervisor/stop/leftovers.h"

#include <algorithm>
#include <csignal>

namespace accel::supervisor {

Leftovers::Leftovers(System& system, SweepScope scope, const StopPolicy& policy)
    : system_(system),
      scope_(std::move(scope)),
      linger_(policy.linger),
      kill_wait_(policy.kill_wait) {}

void Leftovers::rank_ended(int local_rank, pid_t pid, TimePoint now) {
  ended_.push_back({local_rank, pid, SIGTERM, now + linger_});
}

TimePoint Leftovers::next() const noexcept {
  TimePoint next = TimePoint::max();
  for (const EndedRank& rank : ended_) next = std::min(next, rank.due);
  return next;
}

bool Leftovers::belongs_to(const ProcessEntry& stray, const EndedRank& rank) const {
  if (stray.session == rank.pid || stray.group == rank.pid) return true;
  const auto environ = system_.read_file("/proc/" + std::to_string(stray.pid) + "/environ");
  if (!environ) return false;
  const auto real = find_in_environ(*environ, "ACCEL_LOCAL_RANK");
  return (real ? real : find_in_environ(*environ, "LOCAL_RANK")) == std::to_string(rank.local_rank);
}

std::vector<Leftover> Leftovers::step(TimePoint now, const std::vector<pid_t>& live_workers) {
  std::vector<Leftover> named;
  if (next() > now) return named;
  const std::vector<ProcessEntry> table = read_process_table(system_);
  const std::vector<ProcessEntry> below_workers = find_descendants(live_workers, table);
  const auto is_below_a_worker = [&](const ProcessEntry& entry) {
    return std::any_of(below_workers.begin(), below_workers.end(), [&](const ProcessEntry& other) {
      return other.pid == entry.pid;
    });
  };
  for (const ProcessEntry& stray : find_strays(system_, scope_, table)) {
    if (is_below_a_worker(stray)) continue;
    for (const EndedRank& rank : ended_) {
      if (rank.due > now || !belongs_to(stray, rank)) continue;
      if (rank.signal == SIGTERM) {
        named.push_back({stray.pid, read_command(system_, stray)});
      }
      signal_stray(system_, stray, rank.signal);
      signal_stray(system_, stray, SIGCONT);
    }
  }
  for (EndedRank& rank : ended_) {
    if (rank.due <= now && rank.signal == SIGTERM) {
      rank.signal = SIGKILL;
      rank.due = now + kill_wait_;
    }
  }
  std::erase_if(ended_, [&](const EndedRank& rank) { return rank.due <= now; });
  return named;
}

}  // namespace accel::supervisor
