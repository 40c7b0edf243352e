#include "runtime/supervisor/metrics/job_counters.h"

#include <algorithm>
#include <array>
#include <utility>
#include <variant>

namespace accel::supervisor {

namespace {

// By the enumeration; the names of ExitInfo.Cause where it has them.
constexpr std::array<std::string_view, 10> kCauseLabels = {"ok",
                                                           "nonzero",
                                                           "signaled",
                                                           "oom",
                                                           "exec_failed",
                                                           "unkillable",
                                                           "stopped_by_us",
                                                           "lost",
                                                           "library_missing",
                                                           "hang"};
static_assert(kCauseLabels.size() == kNumExitCauses);

// When the shim saw it, which may have been before this agent was there; never after now.
TimePoint seen_at(const WorkerExit& exit, TimePoint now) {
  const TimePoint seen{std::chrono::duration_cast<Duration>(exit.seen_at)};
  return exit.seen_at.count() == 0 ? now : std::min(seen, now);
}

// As the worker measured it, else by the times of its reports. Without a new step that of before.
double pace(const JobCounters::Sight& before, const JobCounters::Sight& now) {
  const bool is_measured =
      now.times.steps > before.times.steps && now.times.total_ns >= before.times.total_ns;
  if (is_measured)
    return static_cast<double>(now.times.total_ns - before.times.total_ns) / 1e9 /
           static_cast<double>(now.times.steps - before.times.steps);
  if (now.step <= before.step || now.beat_at <= before.beat_at) return before.seconds_per_step;
  return seconds_of(now.beat_at - before.beat_at) / static_cast<double>(now.step - before.step);
}

}  // namespace

std::string_view label_of(ExitCause cause) {
  const auto index = static_cast<std::size_t>(cause);
  return index < kCauseLabels.size() ? kCauseLabels[index] : "unknown";
}

void JobCounters::ask_to_stop(TimePoint now) {
  if (!stop_began_) stop_began_ = now;
}

void JobCounters::hear(const HostEvent& event, TimePoint now, DurationTotals& totals) {
  std::visit([&](const auto& one) { hear_one(one, now, totals); }, event);
}

void JobCounters::hear_one(const GenerationStarted& started,
                           TimePoint now,
                           DurationTotals& totals) {
  starts_ += started.pids.size();
  sights_.clear();
  if (const auto began = std::exchange(start_began_, std::nullopt))
    totals.start.observe(now - *began);
  if (const auto failed = std::exchange(failed_at_, std::nullopt))
    totals.restart.observe(now - *failed);
}

void JobCounters::hear_one(const WorkerExit& exit, TimePoint now, DurationTotals&) {
  ++exits_[exit.cause];
  std::erase_if(sights_, [&](const Sight& sight) { return sight.local_rank == exit.local_rank; });
  if (exit.is_failure() && !stop_began_) stop_began_ = seen_at(exit, now);
}

void JobCounters::hear_one(const Restarting& restarting, TimePoint now, DurationTotals& totals) {
  ++restarts_[restarting.because.cause];
  end_stop(now, totals);
  failed_at_ = seen_at(restarting.because, now);
  start_began_ = now + restarting.delay;
}

void JobCounters::hear_one(const Hung& hung, TimePoint now, DurationTotals& totals) {
  totals.hang_detection.observe(hung.silent_for);
  ask_to_stop(now);
}

void JobCounters::hear_one(const Snapshot& snapshot, TimePoint now, DurationTotals&) {
  const std::vector<Sight> before = std::exchange(sights_, {});
  for (const WorkerSnapshot& worker : snapshot.workers) {
    if (!worker.is_alive || worker.beats == 0) continue;
    Sight sight = {.local_rank = worker.local_rank,
                   .step = worker.step,
                   .beat_at = now - worker.silent_for,
                   .times = worker.times};
    const auto same = std::find_if(before.begin(), before.end(), [&](const Sight& other) {
      return other.local_rank == worker.local_rank;
    });
    if (same != before.end()) sight.seconds_per_step = pace(*same, sight);
    sights_.push_back(sight);
  }
}

void JobCounters::hear_one(const GenerationEnded&, TimePoint now, DurationTotals& totals) {
  sights_.clear();
  end_stop(now, totals);
}

void JobCounters::hear_one(const JobOutcome&, TimePoint now, DurationTotals& totals) {
  sights_.clear();
  end_stop(now, totals);
}

void JobCounters::end_stop(TimePoint now, DurationTotals& totals) {
  if (const auto began = std::exchange(stop_began_, std::nullopt))
    totals.stop.observe(now - *began);
}

}  // namespace accel::supervisor
