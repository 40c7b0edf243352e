// ProgressWatch: what the ranks of a node report, from one snapshot of its shim to the next.
//
// A rank is stalled when it has reported nothing for longer than 5 s, and than three times the longest
// silence that it has ended by a report. That says where to look; nobody is stopped for it.
//
// Threads:  a plain value, no clock.
// Source:   tests/unit/agent/coordinator/member/progress_test.cc.
#pragma once

#include <map>
#include <vector>

#include "agent/coordinator/member/member.h"
#include "runtime/supervisor/protocol/frames.h"

namespace accel::agent {

class ProgressWatch {
 public:
  // Another generation begins.
  void restart() { ranks_.clear(); }

  [[nodiscard]] StepsMade observe(const JobUuid& job,
                                  std::uint64_t generation,
                                  const supervisor::Snapshot& snapshot);

 private:
  struct Rank {
    std::uint64_t beats = 0;
    Milliseconds silent_for{0};
    Milliseconds longest{0};
  };
  std::map<int, Rank> ranks_;  // by global rank
};

}  // namespace accel::agent
