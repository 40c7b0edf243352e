// decide_restart: whether a failed generation gets a successor, and how soon.
//
//   the cause would come again (no such program, no such library)   give up
//   the budget is used up                                            give up
//   out of memory, and the budget for that is used up                give up
//   the generation was stable (lived stable_after, or made a step)   at once, and the count starts
//   anew first failure of the count                                       at once each further one
//   backoff_initial * 2^k, at most
//                                                                    backoff_max, times 0.5 .. 1.0
//
// Running out of memory has a budget of its own: it tends to come again at the same batch, and should neither use up
// the budget for what comes and goes nor be tried as often. A job that is never restarted is not restarted after it
// either.
//
// Threads:  a pure function.
#pragma once

#include "runtime/clock.h"
#include "runtime/supervisor/job_outcome.h"
#include "runtime/supervisor/job_spec.h"

namespace accel::supervisor {

// What the job remembers from one failure to the next.
struct RestartHistory {
  int restarts = 0;        // so far, but those after running out of memory
  int out_of_memory = 0;   // restarts after running out of memory
  int quick_failures = 0;  // in a row, without a stable generation between

  [[nodiscard]] int total() const noexcept { return restarts + out_of_memory; }
};

struct GenerationFacts {
  ExitCause cause = ExitCause::kNonZero;  // of the first failure
  Duration lived{};
  bool made_progress = false;  // a worker's channel reported a step
};

enum class RestartVerdict { kRestart, kWouldFailAgain, kBudgetSpent, kMemoryBudgetSpent };

struct RestartDecision {
  RestartVerdict verdict = RestartVerdict::kRestart;
  Milliseconds delay{0};
  RestartHistory history;  // for the next failure
};

// `jitter`: a random number in [0, 1).
[[nodiscard]] RestartDecision decide_restart(const RestartPolicy& policy,
                                             RestartHistory history,
                                             const GenerationFacts& facts,
                                             double jitter);

}  // namespace accel::supervisor
