// JobCounters: what a job's shim told this agent, counted for metrics.
//
// Counted since this agent heard of the job: the next agent of a held job begins at zero, which is what readers of counters
// expect. DurationTotals are of all jobs of the node, so that they outlive the jobs.
//
// Threads:  plain values, no clock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/supervisor/metrics/metric_page.h"
#include "runtime/supervisor/protocol/frames.h"

namespace accel::supervisor {

struct DurationTotals {
  DurationHistogram start;           // from the decision to workers that run
  DurationHistogram stop;            // from the first failure, or the order, to nothing left
  DurationHistogram restart;         // from the failure of a worker to the next workers
  DurationHistogram hang_detection;  // the silence before a rank counted as hung
};

class JobCounters {
 public:
  struct Sight {  // of a worker that runs and reports
    int local_rank = 0;
    std::uint64_t step = 0;
    TimePoint beat_at{};
    StepTimes times;  // 0 steps: it measures none
    double seconds_per_step =
        0;  // of the steps between the last two sights of it; 0: not known yet
  };
  using ByCause = std::map<ExitCause, std::uint64_t>;

  // A generation is about to be started.
  void begin(TimePoint now) { start_began_ = now; }
  // Somebody has asked for its end.
  void ask_to_stop(TimePoint now);
  void hear(const HostEvent& event, TimePoint now, DurationTotals& totals);

  [[nodiscard]] std::uint64_t starts() const { return starts_; }
  [[nodiscard]] const ByCause& exits() const { return exits_; }
  [[nodiscard]] const ByCause& restarts() const { return restarts_; }
  // As the last snapshot showed them.
  [[nodiscard]] const std::vector<Sight>& sights() const { return sights_; }

 private:
  void hear_one(const GenerationStarted& started, TimePoint now, DurationTotals& totals);
  void hear_one(const WorkerExit& exit, TimePoint now, DurationTotals& totals);
  void hear_one(const Restarting& restarting, TimePoint now, DurationTotals& totals);
  void hear_one(const Hung& hung, TimePoint now, DurationTotals& totals);
  void hear_one(const Snapshot& snapshot, TimePoint now, DurationTotals& totals);
  void hear_one(const GenerationEnded& ended, TimePoint now, DurationTotals& totals);
  void hear_one(const JobOutcome& outcome, TimePoint now, DurationTotals& totals);
  template <typename Other>
  void hear_one(const Other&, TimePoint, DurationTotals&) {}
  void end_stop(TimePoint now, DurationTotals& totals);

  std::uint64_t starts_ = 0;
  ByCause exits_;
  ByCause restarts_;
  std::vector<Sight> sights_;
  std::optional<TimePoint> start_began_;
  std::optional<TimePoint> stop_began_;
  std::optional<TimePoint> failed_at_;  // of what the restart under way is because of
};

// As a label: "ok", "nonzero", "oom", ...
[[nodiscard]] std::string_view label_of(ExitCause cause);

}  // namespace accel::supervisor
