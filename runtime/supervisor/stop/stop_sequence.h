// StopSequence: what a running generation is sent, and when, until nothing of it is left.
//
//   begin ------> kSignalled --[stacks]--grace over--> kKilled --kill_wait over--> kGivenUp
//     '--(kKill, or escalate() at any time)--^
//
// At the start everybody gets the signal. In style kNotify a worker that handles preemption gets
// a notice in its channel instead, and the signal only kPreemptionReserve before the grace ends; where
// the policy names a signal of preemption, all others get that one first, and theirs at the same time.
// Time stands still between suspend() and resume() (Ctrl-Z).
//
// Threads:  a plain value; the caller sends what due() says and sleeps until next().
#pragma once

#include <vector>

#include "runtime/clock.h"
#include "runtime/supervisor/protocol/frames.h"
#include "runtime/supervisor/protocol/job_spec.h"

namespace accel::supervisor {

// How long before SIGKILL a worker that handles preemption gets the stop signal after all.
inline constexpr std::chrono::seconds kPreemptionReserve{5};

enum class StopStyle {
  kNotify,  // those who handle preemption are asked first, all others get the signal
  kSignal,  // everybody gets the signal
  kKill,    // SIGKILL at once
};

[[nodiscard]] StopStyle style_of(StopMode mode);

enum class StopTarget {
  kEveryone,
  kPreemptible,     // those who handle preemption
  kNotPreemptible,  // all others
};

struct StopAction {
  enum class Kind {
    kNotify,  // set the request word of the channel
    kSignal,
    kDumpStacks,  // of all that still runs
    kGiveUp,      // what is still there cannot be killed
  } kind = Kind::kSignal;
  StopTarget target = StopTarget::kEveryone;
  int signal = 0;

  bool operator==(const StopAction&) const = default;
};

class StopSequence {
 public:
  // `signal`: what is sent first (SIGINT for Ctrl-C, else the job's stop signal).
  StopSequence(const StopPolicy& policy, StopStyle style, int signal, TimePoint now);

  // What is to be done now, in order; each action is given once.
  [[nodiscard]] std::vector<StopAction> due(TimePoint now);

  // When due() has something again; TimePoint::max() when it never has.
  [[nodiscard]] TimePoint next() const noexcept;

  // SIGKILL no later than `grace` from now; a grace that ends before is kept.
  void shorten(TimePoint now, Duration grace) noexcept;

  // SIGKILL now.
  void escalate(TimePoint now) noexcept;

  void suspend(TimePoint now) noexcept;
  void resume(TimePoint now) noexcept;

  // When SIGKILL comes, or came.
  [[nodiscard]] TimePoint kill_time() const noexcept { return kill_at_; }

  // Whether SIGKILL was sent.
  [[nodiscard]] bool has_killed() const noexcept {
    return phase_ == Phase::kKilled || phase_ == Phase::kGivenUp;
  }

 private:
  enum class Phase { kNew, kNotified, kSignalled, kDumped, kKilled, kGivenUp };

  [[nodiscard]] TimePoint deadline() const noexcept;

  StopStyle style_;
  int signal_;
  TimePoint signal_at_;  // for workers that handle preemption
  TimePoint kill_at_;
  TimePoint dump_at_;  // TimePoint::max(): never
  int preempt_signal_;
  Duration kill_wait_;
  Phase phase_ = Phase::kNew;
  TimePoint suspended_at_ = TimePoint::max();
};

}  // namespace accel::supervisor
