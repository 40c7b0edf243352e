// Everything that is written follows from the state alone and is written again with every exchange: an
// answer that was lost on the way changes nothing.

#include "launcher/start/machines/decisions/machine.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "launcher/start/machines/board/agreement.h"
#include "runtime/supervisor/spawn/exit_error.h"
#include "runtime/supervisor/spawn/exit_report.h"

namespace accel::launcher {
namespace {

using supervisor::ExitCause;
using supervisor::StoreExchange;
using supervisor::WorkerExit;

bool would_fail_again(ExitCause cause) {
  return cause == ExitCause::kExecFailed || cause == ExitCause::kLibraryMissing ||
         cause == ExitCause::kUnkillable;
}

int at_least_one(int exit_code) {
  return exit_code >= 1 && exit_code <= 255 ? exit_code : 1;
}

}  // namespace

Machine::Machine(MachineCard card, bool draws_rank, Program program, std::string port_flag)
    : card_(std::move(card)),
      draws_rank_(draws_rank),
      program_(program),
      port_flag_(std::move(port_flag)) {}

void Machine::add_to(StoreExchange& exchange) const {
  for (const auto name :
       {board_key::kHost, board_key::kPlan, board_key::kGo, board_key::kStop, board_key::kVerdict})
    exchange.reads.emplace_back(name);
  // Again while we wait: a claim whose launcher was silent for long is taken back.
  if (phase_ == Phase::kClaiming || phase_ == Phase::kWaiting) add_claim(exchange);
  if (phase_ == Phase::kWithdrawing) {
    exchange.swaps.push_back({key(board_key::kClaim), claim_, ""});
    exchange.reads.push_back(key(board_key::kClaim));
  }
  if (phase_ == Phase::kRefused)
    exchange.swaps.push_back(
        {std::string(board_key::kFault), "", to_text(failed_verdict(*error_, card_.rank))});
  if (has_joined()) {
    exchange.sets.emplace_back(
        key(board_key::kBeat),
        is_suspended_ ? std::string(kSuspendedBeat) : std::to_string(beats_ + 1));
  }
  if (stop_) exchange.swaps.push_back({std::string(board_key::kStop), "", to_text(*stop_)});
  if (phase_ >= Phase::kReady && plan_) exchange.sets.emplace_back(key(board_key::kReady), "1");
  if (end_) exchange.sets.emplace_back(key(board_key::kEnd), to_text(*end_));
  if (phase_ == Phase::kSettled) exchange.sets.emplace_back(key(board_key::kLeft), "1");
}

void Machine::add_claim(StoreExchange& exchange) const {
  if (!claim_.empty()) exchange.swaps.push_back({key(board_key::kClaim), "", claim_});
  if (!draws_rank_ || phase_ == Phase::kWaiting) {
    exchange.reads.push_back(key(board_key::kClaim));
    return;
  }
  if (first_place_ == 0) exchange.counter = board_key::kJoins;
  for (int rank = 1; rank < card_.num_machines; ++rank)
    exchange.reads.push_back(board_key::of(board_key::kClaim, rank));
}

MachineActions Machine::take(const Board& board) {
  MachineActions actions;
  ++beats_;
  switch (phase_) {
    case Phase::kGone:
      return actions;
    case Phase::kWithdrawing:
      // Else the answer is that of an exchange that was under way when our user asked.
      if (board.at(key(board_key::kClaim)) == claim_) return actions;
      return leave();
    case Phase::kRefused:
    case Phase::kSettled:
      return leave();  // what had to be written is
    case Phase::kMeeting:
      meet(board);
      if (phase_ == Phase::kGone) return {Leave{}};
      if (phase_ == Phase::kRefused || phase_ == Phase::kMeeting) return actions;
      break;
    case Phase::kClaiming:
      claim(board);
      break;
    case Phase::kWaiting:
      claim(board);
      if (phase_ == Phase::kWaiting) read_plan(board, actions);
      break;
    case Phase::kReady:
      if (!board.has(board_key::kGo) || board.has(board_key::kStop)) break;
      phase_ = Phase::kRunning;
      actions.emplace_back(StartWorkers{});
      break;
    default:
      break;
  }
  if (phase_ == Phase::kRefused) return actions;
  obey_stop(board, actions);
  settle(board, actions);
  return actions;
}

void Machine::meet(const Board& board) {
  const std::string& text = board.at(board_key::kHost);
  if (text.empty()) return;
  const auto main = card_from(text);
  if (!main) {
    return refuse(Error(main.error()).while_doing("reading what machine 0 wrote"));
  }
  if (main->generation < card_.generation) return;  // the old store; the new one is to come
  if (main->generation > card_.generation) {
    // It formed without us: what we have to say is nothing to it.
    phase_ = Phase::kGone;
    error_ = Error(ErrorCode::kInvalidArgument,
                   "the job of " + main->describe() + " runs already, in generation " +
                       std::to_string(main->generation),
                   "wait until it has ended, or give another " + port_flag_);
    return;
  }
  if (auto fault = find_disagreement(*main, card_, program_)) return refuse(*std::move(fault));
  if (!draws_rank_) claim_ = to_text(card_);
  phase_ = Phase::kClaiming;
}

void Machine::claim(const Board& board) {
  const std::string& standing = board.at(key(board_key::kClaim));
  if (!claim_.empty() && standing == claim_) {
    phase_ = Phase::kWaiting;
    return;
  }
  if (draws_rank_) return take_place(board);
  if (standing.empty()) return;
  const auto holder = card_from(standing);
  refuse(holder ? rank_is_taken(*holder, card_, program_, port_flag_) : holder.error());
}

// The counter spreads those that come together; what counts is the claim. So it leaves no holes when
// somebody leaves, or an answer is lost.
void Machine::take_place(const Board& board) {
  const int num_places = std::max(card_.num_machines - 1, 1);
  if (first_place_ == 0) {
    const std::int64_t joins_before = std::max<std::int64_t>(board.count(), 1) - 1;
    first_place_ = 1 + static_cast<int>(joins_before % num_places);
  }
  phase_ = Phase::kClaiming;
  claim_.clear();
  for (int i = 0; i < num_places; ++i) {
    card_.rank = (first_place_ - 1 + i) % num_places + 1;
    if (!board.at(key(board_key::kClaim)).empty()) continue;
    claim_ = to_text(card_);
    return;
  }
  // The claim of one that has vanished is still taken back, until the plan is made.
  if (!board.has(board_key::kPlan)) return;
  refuse(Error(ErrorCode::kInvalidArgument,
               card_.describe_host() + " is one machine more than --nnodes " +
                   std::to_string(card_.num_machines) + " says",
               "start as many launchers as --nnodes says, on each machine one"));
}

void Machine::refuse(Error why) {
  error_ = std::move(why);
  phase_ = Phase::kRefused;
}

void Machine::note_stop(StopNote note) {
  if (stop_) return;
  note.machine = card_.rank;
  stop_ = std::move(note);
}

void Machine::read_plan(const Board& board, MachineActions& actions) {
  const std::string& text = board.at(board_key::kPlan);
  if (text.empty() || board.has(board_key::kVerdict)) return;
  auto plan = plan_from(text);
  const auto index = static_cast<std::size_t>(card_.rank);
  const bool is_ours = plan && index < plan->num_workers.size() &&
                       plan->num_workers[index] == card_.num_workers &&
                       plan->launchers[index] == card_.id;
  if (!is_ours) {
    return refuse(plan ? Error(ErrorCode::kProtocol, "the plan of the job is not for this machine")
                       : plan.error());
  }
  plan_ = *std::move(plan);
  phase_ = Phase::kPreparing;
  actions.emplace_back(PrepareWorkers{.first_rank = plan_->first_rank(card_.rank),
                                      .world_size = plan_->world_size(),
                                      .restart_count = plan_->restart_count});
}

// Before its workers run a machine has nothing to stop: it says at once that they have ended.
void Machine::obey_stop(const Board& board, MachineActions& actions) {
  if (!board.has(board_key::kStop) || !plan_ || end_) return;
  if (phase_ == Phase::kReady) {
    end_ = EndNote{.success = true, .has_saved = false, .exit_code = 0};
    phase_ = Phase::kOver;
  } else if (phase_ == Phase::kRunning && !is_stopping_) {
    is_stopping_ = true;
    actions.emplace_back(StopWorkers{});
  }
}

void Machine::settle(const Board& board, MachineActions& actions) {
  const std::string& text = board.at(board_key::kVerdict);
  if (text.empty()) return;
  auto verdict = verdict_from(text);
  if (!verdict) return refuse(Error(verdict.error()).while_doing("reading what machine 0 wrote"));
  verdict_ = *std::move(verdict);
  if (phase_ == Phase::kRunning && !is_stopping_) {
    is_stopping_ = true;
    actions.emplace_back(StopWorkers{});
  }
  phase_ = Phase::kSettled;
}

MachineActions Machine::leave() {
  const bool begins_again =
      phase_ == Phase::kSettled && verdict_ && verdict_->kind == VerdictKind::kRestart;
  phase_ = Phase::kGone;
  if (begins_again) return {BeginAgain{}};
  return {Leave{}};
}

// ---- what happens on this machine ----

void Machine::workers_ready() {
  if (phase_ == Phase::kPreparing) phase_ = Phase::kReady;
}

void Machine::workers_not_ready(const Error& why) {
  if (phase_ != Phase::kPreparing) return;
  const int exit_code = at_least_one(error_info(why.code()).exit_status);
  note_stop({.kind = StopKind::kNotReady, .exit_code = exit_code, .text = why.message()});
  end_ = EndNote{.success = false, .has_saved = false, .exit_code = exit_code};
  phase_ = Phase::kOver;
}

void Machine::worker_failed(const WorkerExit& exit) {
  if (phase_ == Phase::kRunning && !is_stopping_) note_failure(exit);
}

void Machine::worker_preempted(const WorkerExit& exit) {
  if (phase_ != Phase::kRunning || std::exchange(is_stopping_, true)) return;
  note_stop({.kind = StopKind::kSignal,
             .exit_code = 128 + SIGTERM,
             .text = "rank " + std::to_string(exit.global_rank) + " has saved for its preemption"});
}

void Machine::note_failure(const WorkerExit& exit) {
  note_stop({.kind = StopKind::kFailure,
             .rank = exit.global_rank,
             .exit_code = at_least_one(supervisor::shell_exit_code(exit)),
             .may_restart = !would_fail_again(exit.cause),
             .text = supervisor::error_of(exit, supervisor::rank_name(exit, 1)).message()});
}

void Machine::workers_ended(const supervisor::JobOutcome& outcome) {
  if (phase_ == Phase::kRunning) phase_ = Phase::kOver;
  end_ = EndNote{
      .success = outcome.success, .has_saved = outcome.has_saved, .exit_code = outcome.exit_code};
  if (outcome.success || is_stopping_) return;
  if (outcome.first_failure) {
    note_failure(*outcome.first_failure);
  } else {
    note_stop({.kind = StopKind::kFailure,
               .exit_code = at_least_one(outcome.exit_code),
               .text = "the workers failed: " + outcome.reason});
  }
}

MachineActions Machine::asked_to_stop(int signal, const std::string& name) {
  if (phase_ == Phase::kMeeting || phase_ == Phase::kRefused || phase_ == Phase::kGone) {
    phase_ = Phase::kGone;
    return {Leave{}};
  }
  const bool is_alone = (draws_rank_ || card_.rank != 0) && !plan_ && phase_ <= Phase::kWaiting;
  if (is_alone) {
    // The others have not begun: the place is free again, and they go on waiting.
    phase_ = claim_.empty() ? Phase::kGone : Phase::kWithdrawing;
    if (phase_ == Phase::kGone) return {Leave{}};
    return {};
  }
  note_stop({.kind = StopKind::kSignal, .exit_code = 128 + signal, .text = "it got " + name});
  if (phase_ != Phase::kRunning || is_stopping_) return {};
  is_stopping_ = true;
  return {StopWorkers{signal}};
}

MachineActions Machine::fail(Error why) {
  if (phase_ == Phase::kGone) return {};
  MachineActions actions;
  if (phase_ == Phase::kRunning && !is_stopping_) actions.emplace_back(StopWorkers{});
  error_ = std::move(why);
  phase_ = Phase::kGone;
  actions.emplace_back(Leave{});
  return actions;
}

}  // namespace accel::launcher
