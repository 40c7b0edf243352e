// JobTimeline: what happened to a job, as its shim told it: generations, failures, restarts, hangs, ends.
//
// Threads:  plain values, no clock.
// Source:   docs/guides/dashboard.md.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>

#include "runtime/supervisor/protocol/frames.h"

namespace accel::supervisor {

class JobTimeline {
 public:
  static constexpr std::size_t kMostEvents = 100;  // older ones are forgotten
  static constexpr std::size_t kMostText = 300;    // bytes of each

  struct Event {
    double wall_seconds = 0;  // since 1970, for texts
    std::string_view
        kind;  // "started", "failed", "ended", "restarting", "hung", "straggler", "stopped", "continued", "over"
    int generation = 0;
    int rank = -1;  // -1: of the whole job
    std::string text;
  };

  // `num_workers`: of the job, for the name of a rank.
  void hear(const HostEvent& event, double wall_seconds, int num_workers);

  [[nodiscard]] const std::deque<Event>& events() const { return events_; }

 private:
  void add(Event event);

  std::deque<Event> events_;
  int generation_ = 0;
};

}  // namespace accel::supervisor
