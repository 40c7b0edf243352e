// ClockSkew: how far the wall clock of a node is off from ours.
//
// Nothing depends on it: liveness, leases and lists of events go by monotonic clocks. But who compares the logs of two
// nodes wants to know, and files that are "from the future" break builds and caches.
//
// A beat brings the sender's time and arrives a little later, so the clock of the node seems to be behind by the delay. The
// smallest such delay of the last beats is the best guess.
//
// Threads:  a plain value.
// Source:   fault 44 of docs/reference/faults.md.
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <string>

namespace accel::agent {

class ClockSkew {
 public:
  using Milliseconds = std::chrono::milliseconds;
  static constexpr Milliseconds kTold{1'000};  // what is worth a word
  static constexpr std::size_t kBeats = 3;     // in a row, before anything is said

  // Both since the epoch of the wall clock. Gives what is to be said now, empty most of the time: that the clock is off
  // by more than kTold, that this changed by as much, that it is right again.
  [[nodiscard]] std::string observe(Milliseconds theirs, Milliseconds ours);

  // Theirs minus ours, as well as the last beats show it.
  [[nodiscard]] std::optional<Milliseconds> seen() const;

  // Theirs minus ours, as last told; 0: not worth a word.
  [[nodiscard]] Milliseconds told() const noexcept { return told_; }

 private:
  std::deque<Milliseconds> seen_;
  Milliseconds told_{0};
};

}  // namespace accel::agent
