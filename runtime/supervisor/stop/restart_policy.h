// decide_restart: whether a failed generation gets a successor, and how soon.
//
//   no restart is wanted after this cause (fail_after)               give up
//   the same crash for the max_same_crash-th time in a row           give up
//   the cause would come again (no such program, no such library),
//   and restart_after does not name it                               give up
//   the budget is used up                                            give up
//   out of memory, and the budget for that is used up                give up
//   the generation was stable (lived stable_after, or made a step)   at once, and the count starts
//   anew first failure of the count                                       at once each further one
//   backoff_initial * 2^k, at most
//                                                                    backoff_max, times 1 - jitter .. 1
//
// Running out of memory has a budget of its own: it tends to come again at the same batch, and should neither use up
// the budget for what comes and goes nor be tried as often. A job that is never restarted is not restarted after it
// either.
//
// Threads:  a pure function.
#pragma once

#include <string>

#include "runtime/clock.h"
#include "runtime/supervisor/protocol/job_outcome.h"
#include "runtime/supervisor/protocol/job_spec.h"

namespace accel::supervisor {

// What the job remembers from one failure to the next.
struct RestartHistory {
  int restarts = 0;        // so far, but those after running out of memory
  int out_of_memory = 0;   // restarts after running out of memory
  int quick_failures = 0;  // in a row, without a stable generation between
  std::string crash;       // the last one, as GenerationFacts::crash
  int same_crashes = 0;    // so often in a row

  [[nodiscard]] int total() const noexcept { return restarts + out_of_memory; }
};

struct GenerationFacts {
  ExitCause cause = ExitCause::kNonZero;  // of the first failure
  Duration lived{};
  bool made_progress = false;  // a worker's channel reported a step
  std::string crash;           // crash_key(); empty: it is not compared
};

// Two crashes with the same key are the same: cause, code, rank and step.
[[nodiscard]] std::string crash_key(const WorkerExit& exit);

enum class RestartVerdict {
  kRestart,
  kNotWanted,  // fail_after
  kSameCrash,
  kWouldFailAgain,
  kBudgetSpent,
  kMemoryBudgetSpent
};

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
