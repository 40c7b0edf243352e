// JobWatch: what a launcher knows of its job on this machine, by the events of its shim.
//
// The figures are those of an agent's jobs: the same counters and accounts hear the same events.
//
// Threads:  plain values, no clock.
// Source:   docs/reference/metrics.md, docs/guides/dashboard.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/supervisor/dashboard/dashboard_state.h"
#include "runtime/supervisor/metrics/job_accounts.h"
#include "runtime/supervisor/metrics/job_counters.h"
#include "runtime/supervisor/metrics/metric_page.h"

namespace accel::launcher {

class JobWatch {
 public:
  struct Names {
    std::string job;
    std::string node;
    std::string user;  // of this process; empty: not known
  };
  // The shim is about to be started.
  JobWatch(Names names, TimePoint now);

  // Of a job on several machines, before its workers are started: their ranks are from `first_rank` on.
  void place(int first_rank, int world_size);

  // `wall_seconds`: since 1970, for texts.
  void hear(const supervisor::HostEvent& event, TimePoint now, double wall_seconds);
  // Somebody has asked for its end.
  void ask_to_stop(TimePoint now);

  // The shim is lost, or refused the job: nothing more will come. `reason`: why.
  void lose(const std::string& reason, TimePoint now, double wall_seconds);

  // Whether a snapshot would tell the accounts something new: that the first step is made.
  [[nodiscard]] bool wants_snapshots() const { return accounts_.wants_snapshots(); }

  // Adds what is known of the job.
  void add_to(supervisor::MetricPage& page, TimePoint now) const;
  // The same for a page that people look at. `has_logs` and `has_curves` are not filled.
  [[nodiscard]] supervisor::DashboardJob shown(TimePoint now) const;
  [[nodiscard]] int generation() const { return generation_; }
  // Whether there is a process of this rank, as far as is known.
  [[nodiscard]] bool runs(int rank) const;
  // Of a rank of this machine, as far as is known. Negative: it is one of another machine.
  [[nodiscard]] int local_rank_of(int rank) const { return rank - first_rank_; }

 private:
  void hear_workers(const supervisor::HostEvent& event);

  Names names_;
  supervisor::DurationTotals durations_;
  supervisor::JobCounters counters_;
  supervisor::JobAccounts accounts_;
  supervisor::JobTimeline timeline_;
  int generation_ = 0;
  int first_rank_ = 0;
  int world_size_ = 0;                            // 0: the workers here are all
  std::vector<supervisor::DashboardRank> ranks_;  // of the generation, by local rank
  std::string state_ = "pending";                 // as `accel status` calls it
  std::string reason_;
};

}  // namespace accel::launcher
