// JobRecord: what has happened in a job so far, and the outcome made of it.
//
// Threads:  a plain value.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/clock.h"
#include "runtime/supervisor/protocol/frames.h"
#include "runtime/supervisor/protocol/job_outcome.h"

namespace accel::supervisor {

// Of a launcher that was stopped by `signal`: 128 + signal, as shells say it; SIGUSR1 counts as SIGTERM.
[[nodiscard]] int exit_code_after(int signal);

class JobRecord {
 public:
  // Forgets the exits of the generation before; leftovers and notices stay.
  void begin_generation(int generation);

  // Records an end. The first that is neither success nor our own doing, and came before anybody asked the
  // job to stop, is the first failure. Returns the exit as recorded.
  const WorkerExit& add(WorkerExit exit, TimePoint now, bool was_asked_to_stop);

  // Lets `fill_in` add the texts of a worker that ended in this generation. A loader's complaint about a
  // missing library among them changes the cause.
  void complete(int local_rank, const std::function<void(WorkerExit&)>& fill_in);

  void add_notice(std::string text) { notices_.push_back(std::move(text)); }

  // A newer one replaces it; it outlives its generation.
  void set_checkpoint(CommittedCheckpoint checkpoint) { checkpoint_ = std::move(checkpoint); }

  // This rank hangs and is about to be stopped: it is the first failure, however it ends.
  void note_hang(int global_rank, std::string detail);

  // Each process once.
  void add_leftover(Leftover leftover);

  // Notes which ranks had ended with 0 before the first failure.
  void note_early_returns();

  [[nodiscard]] const std::optional<WorkerExit>& first_failure() const { return first_failure_; }
  [[nodiscard]] const std::vector<WorkerExit>& exits() const { return exits_; }

  // Whether every rank that ended in this generation has said that it saved for its preemption.
  [[nodiscard]] bool has_saved() const;

  // `asked`: the owner's wish to stop, when there was one; it decides the exit code, and when it was
  // a preemption that every rank has saved for, that is `requeue_code` (0: none).
  [[nodiscard]] JobOutcome outcome(const std::optional<Stop>& asked,
                                   int restarts,
                                   int requeue_code = 0) const;

 private:
  int generation_ = 0;
  std::optional<CommittedCheckpoint> checkpoint_;
  std::optional<WorkerExit> first_failure_;
  std::optional<int> hung_rank_;
  std::string hang_detail_;
  std::vector<WorkerExit> exits_;
  std::vector<Leftover> leftovers_;
  std::vector<std::string> notices_;
};

}  // namespace accel::supervisor
