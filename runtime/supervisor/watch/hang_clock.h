// HangClock: decides from the workers' reports whether one of them hangs, and which one began.
//
// Time is that of the observations, not that which workers write. Only a rank that has reported is
// judged, and ranks that are silent while others report, after `first_beat`.
//
//   limit   kFixed: the given one
//           kAuto:  max(floor, safety * p99 of the last 512 times between two reports of a rank);
//                   before 10 of them are known: max(floor, first_beat)
//           at least `other_phase` while the rank says that it does not train
//   paused  while any worker is stopped or traced (the others wait for it), and while the job is
//           suspended: silence does not grow
//   first   the rank of the lowest step among the silent ones, then of the longest silence
//
// Stragglers: see step_comparison.h.
//
// Threads:  a plain value, no clock and no system call.
// Source:   docs/internals/supervision.md "Hangs"; tests/unit/supervisor/hang_clock_test.cc.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "runtime/clock.h"
#include "runtime/supervisor/protocol/job_spec.h"
#include "runtime/supervisor/watch/step_comparison.h"

namespace accel::supervisor {

struct RankReport {
  int global_rank = 0;
  std::uint64_t beats = 0;  // so far; 0: never reported
  std::uint64_t step = 0;
  bool is_training = true;  // as it says
  bool is_stopped = false;
};

struct Hang {
  int global_rank = 0;
  std::uint64_t step = 0;
  Duration silent_for{};
  Duration limit{};
  std::vector<int> silent_ranks;  // for longer than half of the limit
};

class HangClock {
 public:
  explicit HangClock(const HangPolicy& policy) : policy_(policy) {}

  // Forgets everything: another generation starts.
  void restart(TimePoint now);

  // What the live workers report now. Observations a second apart or less are fine enough.
  // Returns the hang that this shows, if any.
  std::optional<Hang> observe(TimePoint now, const std::vector<RankReport>& reports);

  // Those found since the last call.
  [[nodiscard]] std::vector<SlowRank> take_slow_ranks();

  // Time between suspend() and resume() is nobody's.
  void suspend(TimePoint now) { suspended_at_ = now; }
  void resume(TimePoint now);

  // The limit for a rank that trains.
  [[nodiscard]] Duration limit() const;

 private:
  struct Rank {
    std::uint64_t beats = 0;
    std::uint64_t step = 0;
    bool is_training = true;
    TimePoint heard_at{};
  };

  void hear(Rank& rank, const RankReport& report, TimePoint now);
  void shift(Duration time);
  [[nodiscard]] Duration limit_of(const Rank& rank) const;
  void compare_steps(TimePoint now, const std::vector<RankReport>& reports);

  HangPolicy policy_;
  std::map<int, Rank> ranks_;
  std::deque<Duration> intervals_;
  TimePoint observed_at_{};
  StepComparison comparison_;
  bool has_beaten_ = false;  // any rank
  std::optional<TimePoint> suspended_at_;
  std::vector<SlowRank> slow_ranks_;
};

}  // namespace accel::supervisor
