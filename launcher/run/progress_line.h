// ProgressLine: how far the job is, in one line: what accel-launch keeps below the workers' output on a terminal.
//
//   step 1200 | 8.1 steps/s | 259 samples/s | slowest rank 3 (2 steps behind) | 1 restart | 0:12:03
//
// From what the workers report through their channels (docs/internals/worker_channel.md). A step is that of the rank that is the farthest
// behind. Rates are those of the last ten seconds; a restart begins them anew.
//
// Threads:  one. Pure: the time is passed in.
// Source:   docs/guides/console.md; tests/unit/launcher/progress_line_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "launcher/run/progress_when.h"
#include "runtime/clock.h"
#include "runtime/supervisor/protocol/frames.h"

namespace accel::launcher {

class ProgressLine {
 public:
  ProgressLine(ProgressWhen when, TimePoint started) : when_(when), started_(started) {}

  void take(const supervisor::Snapshot& snapshot, TimePoint now);
  void restarting();

  // Of at most `columns` - 1 letters; empty: there is nothing to show.
  [[nodiscard]] std::string text(TimePoint now, std::size_t columns) const;
  // See ShowStatus.
  [[nodiscard]] bool despite_returns() const noexcept { return when_ == ProgressWhen::kOn; }

 private:
  struct Sample {
    TimePoint at;
    std::uint64_t step = 0;     // of the rank that is the farthest behind
    std::uint64_t samples = 0;  // of all ranks
  };

  [[nodiscard]] std::string rates() const;
  [[nodiscard]] std::string slowest() const;

  ProgressWhen when_;
  TimePoint started_;
  unsigned num_restarts_ = 0;
  supervisor::Snapshot last_;
  std::deque<Sample> samples_;  // of this generation, the oldest first
};

}  // namespace accel::launcher
