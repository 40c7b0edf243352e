#include "launcher/watch/job_watch.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "runtime/supervisor/metrics/job_metrics.h"

namespace accel::launcher {

using supervisor::Metric;

JobWatch::JobWatch(Names names, TimePoint now) : names_(std::move(names)) {
  counters_.begin(now);
  accounts_.begin(now);
}

void JobWatch::place(int first_rank, int world_size) {
  first_rank_ = first_rank;
  world_size_ = world_size;
}

void JobWatch::hear(const supervisor::HostEvent& event, TimePoint now, double wall_seconds) {
  counters_.hear(event, now, durations_);
  accounts_.hear(event, now);
  const int num_ranks = world_size_ > 0 ? world_size_ : static_cast<int>(ranks_.size());
  timeline_.hear(event, wall_seconds, num_ranks);
  hear_workers(event);
  if (const auto* outcome = std::get_if<supervisor::JobOutcome>(&event)) {
    accounts_.close(now);
    const bool is_cancelled = state_ == "stopping" && !outcome->first_failure;
    state_ = outcome->success ? "succeeded" : is_cancelled ? "cancelled" : "failed";
    reason_ = outcome->reason;
  }
}

void JobWatch::ask_to_stop(TimePoint now) {
  counters_.ask_to_stop(now);
  accounts_.ask_to_stop(now);
  state_ = "stopping";
}

// As an agent shows it (show_loss()).
void JobWatch::lose(const std::string& reason, TimePoint now, double wall_seconds) {
  accounts_.close(now);
  timeline_.hear(supervisor::JobOutcome{.reason = reason}, wall_seconds, 0);
  state_ = "failed";
  reason_ = reason;
  for (supervisor::DashboardRank& rank : ranks_) {
    if (rank.pid == 0) continue;
    rank.pid = 0;
    rank.end = label_of(supervisor::ExitCause::kLost);
  }
}

void JobWatch::hear_workers(const supervisor::HostEvent& event) {
  if (const auto* started = std::get_if<supervisor::GenerationStarted>(&event)) {
    generation_ = started->generation;
    if (state_ == "pending") state_ = "running";
    ranks_.clear();
    for (std::size_t i = 0; i < started->pids.size(); ++i) {
      const int local_rank = static_cast<int>(i);
      ranks_.push_back({.rank = first_rank_ + local_rank,
                        .local_rank = local_rank,
                        .node = names_.node,
                        .pid = started->pids[i]});
    }
  } else if (const auto* exit = std::get_if<supervisor::WorkerExit>(&event)) {
    const auto rank = static_cast<std::size_t>(exit->local_rank);
    if (exit->local_rank < 0 || rank >= ranks_.size()) return;
    ranks_[rank].pid = 0;
    ranks_[rank].end = label_of(exit->cause);
  }
}

bool JobWatch::runs(int rank) const {
  const int local_rank = local_rank_of(rank);
  const auto index = static_cast<std::size_t>(local_rank);
  return local_rank >= 0 && index < ranks_.size() && ranks_[index].pid > 0;
}

supervisor::DashboardJob JobWatch::shown(TimePoint now) const {
  supervisor::DashboardJob job = {.id = names_.job,
                                  .user = names_.user,
                                  .state = state_,
                                  .reason = reason_,
                                  .generation = static_cast<std::uint64_t>(generation_),
                                  .restarts = static_cast<std::uint64_t>(generation_),
                                  .ledger = settled(accounts_.ledger(), now),
                                  .ranks = ranks_,
                                  .events = {timeline_.events().begin(), timeline_.events().end()}};
  for (const supervisor::JobCounters::Sight& sight : counters_.sights()) {
    const auto rank = static_cast<std::size_t>(sight.local_rank);
    if (sight.local_rank >= 0 && rank < job.ranks.size()) add_sight(job.ranks[rank], sight, now);
  }
  return job;
}

void JobWatch::add_to(supervisor::MetricPage& page, TimePoint now) const {
  const auto num_running =
      std::count_if(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank.pid > 0; });
  add_workers(page,
              names_.job,
              names_.node,
              static_cast<int>(num_running),
              static_cast<int>(ranks_.size()));
  add_counters(page, names_.job, names_.node, counters_, now);
  add_restarts(page, names_.job, counters_.restarts());
  add_ledger(page, names_.job, settled(accounts_.ledger(), now));
  page.add(Metric::kGeneration, {names_.job}, generation_);
  add_durations(page, durations_);
}

}  // namespace accel::launcher
