// StepComparison: which ranks take longer for a step than the others.
//
// Every 10 s the mean step time of each rank that made steps is compared with the others' by a robust
// z-score: distance from the median in units of 1.4826 MAD, at least 1 % of the median. A rank above
// 3.5, and 10 % above the median, three times in a row is named, once. At least three ranks must have
// made steps. Ranks that wait for each other in every step have equal step times: they are not told apart.
//
// The shim compares the ranks of its node, the coordinator those of all nodes.
//
// Threads:  a plain value, no clock.
// Source:   docs/internals/supervision.md "Hangs"; tests/unit/supervisor/hang_clock_test.cc,
//           tests/unit/agent/coordinator/member/progress_test.cc.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "runtime/clock.h"

namespace accel::supervisor {

struct SlowRank {
  int global_rank = 0;
  Duration step_time{};
  Duration median{};
  double score = 0;
};

class StepComparison {
 public:
  // Forgets everything; a window begins.
  void restart(TimePoint now);

  // `step` is the last one of the rank as seen at `at`. Outside of training it is not compared.
  void see(int global_rank, std::uint64_t step, TimePoint at, bool is_training = true);

  // At the end of a window: the ranks that turned out slow with it.
  [[nodiscard]] std::vector<SlowRank> compare(TimePoint now);

  // So much time is nobody's.
  void shift(Duration time);

 private:
  struct Rank {
    std::uint64_t begin_step = 0;  // of the window
    TimePoint begin_at{};
    std::uint64_t step = 0;
    TimePoint at{};
    bool is_training = true;
    int slow_windows = 0;
    bool is_named = false;
  };

  std::map<int, Rank> ranks_;
  TimePoint window_at_{};
};

}  // namespace accel::supervisor
