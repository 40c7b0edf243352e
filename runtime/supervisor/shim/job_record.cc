#include "runtime/supervisor/shim/job_record.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "runtime/supervisor/spawn/exit_report.h"

namespace accel::supervisor {
namespace {

constexpr int kSignalBase = 128;
constexpr int kExitCodeOfLoader = 127;

}  // namespace

// SIGUSR1 is another scheduler's word for what most say with SIGTERM.
int exit_code_after(int signal) {
  return kSignalBase + (signal == SIGUSR1 ? SIGTERM : signal);
}

void JobRecord::begin_generation(int generation) {
  generation_ = generation;
  first_failure_.reset();
  hung_rank_.reset();
  exits_.clear();
}

const WorkerExit& JobRecord::add(WorkerExit exit, TimePoint now, bool was_asked_to_stop) {
  exit.generation = generation_;
  exit.seen_at = now.time_since_epoch();
  const bool has_hung = hung_rank_ == exit.global_rank;
  if (has_hung && exit.cause != ExitCause::kUnkillable) {
    exit.cause = ExitCause::kHang;
    exit.detail = hang_detail_;
  }
  const bool is_consequence = hung_rank_ && !has_hung;
  if (exit.is_failure() && !first_failure_ && !was_asked_to_stop && !is_consequence) {
    first_failure_ = exit;
  }
  return exits_.emplace_back(std::move(exit));
}

void JobRecord::complete(int local_rank, const std::function<void(WorkerExit&)>& fill_in) {
  for (WorkerExit& exit : exits_) {
    if (exit.local_rank != local_rank) continue;
    fill_in(exit);
    const bool may_be_the_loader =
        exit.cause == ExitCause::kNonZero && exit.exit_code == kExitCodeOfLoader;
    if (may_be_the_loader && names_missing_library(exit.tail)) {
      exit.cause = ExitCause::kLibraryMissing;
    }
    if (first_failure_ && first_failure_->local_rank == local_rank) first_failure_ = exit;
  }
}

void JobRecord::note_hang(int global_rank, std::string detail) {
  if (first_failure_) return;
  hung_rank_ = global_rank;
  hang_detail_ = std::move(detail);
}

void JobRecord::add_leftover(Leftover leftover) {
  const bool is_known =
      std::any_of(leftovers_.begin(), leftovers_.end(), [&](const Leftover& known) {
        return known.pid == leftover.pid;
      });
  if (!is_known) leftovers_.push_back(std::move(leftover));
}

void JobRecord::note_early_returns() {
  if (!first_failure_) return;
  for (const WorkerExit& exit : exits_) {
    if (exit.cause != ExitCause::kOk) continue;
    add_notice("rank " + std::to_string(exit.global_rank) +
               " had ended with exit code 0 before rank " +
               std::to_string(first_failure_->global_rank) + " failed");
  }
}

bool JobRecord::has_saved() const {
  return !exits_.empty() && std::all_of(exits_.begin(), exits_.end(), [](const WorkerExit& exit) {
    return exit.has_saved;
  });
}

JobOutcome JobRecord::outcome(const std::optional<Stop>& asked,
                              int restarts,
                              int requeue_code) const {
  JobOutcome outcome;
  outcome.restarts = restarts;
  outcome.exits = exits_;
  outcome.leftovers = leftovers_;
  outcome.notices = notices_;
  outcome.checkpoint = checkpoint_;
  if (asked) {
    const bool has_signal = asked->signal != 0;
    outcome.exit_code = has_signal ? exit_code_after(asked->signal) : 1;
    outcome.reason = has_signal ? "stopped by " + signal_name(asked->signal) : "stopped";
    outcome.has_saved = asked->mode == StopMode::kTerminate && has_saved();
    if (outcome.has_saved) {
      outcome.reason += "; every rank has saved";
      if (requeue_code != 0) outcome.exit_code = requeue_code;
    }
  } else if (first_failure_) {
    outcome.first_failure = first_failure_;
    outcome.exit_code = shell_exit_code(*first_failure_);
    outcome.reason = "failed";
  } else {
    outcome.success = true;
    outcome.reason = "succeeded";
  }
  return outcome;
}

}  // namespace accel::supervisor
