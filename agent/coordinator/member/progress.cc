#include "agent/coordinator/member/progress.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace accel::agent {
namespace {

constexpr Milliseconds kLeastSilence{5'000};
constexpr int kSafety = 3;

std::int64_t step_of(const supervisor::WorkerSnapshot& worker) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  return static_cast<std::int64_t>(std::min(worker.step, kMost));
}

}  // namespace

StepsMade ProgressWatch::observe(const JobUuid& job,
                                 std::uint64_t generation,
                                 const supervisor::Snapshot& snapshot) {
  StepsMade made;
  made.job_uuid = job;
  made.generation = generation;
  std::vector<std::tuple<std::int64_t, Milliseconds, int>> stalled;  // lowest step, longest silence
  bool is_first = true;
  for (const supervisor::WorkerSnapshot& worker : snapshot.workers) {
    RankProgress& progress = made.ranks.emplace_back();
    if (!worker.is_alive || worker.beats == 0) continue;
    progress = {step_of(worker), worker.silent_for};
    Rank& rank = ranks_[worker.global_rank];
    // The silence before this report was at least as long as when it was looked at last.
    if (worker.beats != rank.beats) rank.longest = std::max(rank.longest, rank.silent_for);
    rank.beats = worker.beats;
    rank.silent_for = worker.silent_for;
    if (worker.silent_for > std::max(kLeastSilence, kSafety * rank.longest)) {
      stalled.emplace_back(progress.step, -worker.silent_for, worker.global_rank);
    }
    made.min_step = is_first ? progress.step : std::min(made.min_step, progress.step);
    made.max_step = std::max(made.max_step, progress.step);
    made.last_progress_age =
        is_first ? progress.silent_for : std::min(made.last_progress_age, progress.silent_for);
    is_first = false;
  }
  std::sort(stalled.begin(), stalled.end());
  for (const auto& entry : stalled) made.stalled_ranks.push_back(std::get<int>(entry));
  return made;
}

}  // namespace accel::agent
