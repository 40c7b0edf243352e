// RUNNING: workers run; who fails first, who is done, how far the job is.

#include <algorithm>

#include "agent/coordinator/turn.h"

namespace accel::agent {
namespace {

using supervisor::ExitCause;
using supervisor::WorkerExit;

// When it happened, on our clock: the node's own time, shifted by the least delay that was seen. Never
// later than now, never before the node was given its part.
TimePoint seen_at(const Turn& turn, const Job& job, const Node& node, const WorkerExit& exit) {
  if (!node.session.clock_offset || exit.seen_at.count() == 0) return turn.now;
  const TimePoint at{
      std::chrono::duration_cast<Duration>(exit.seen_at + *node.session.clock_offset)};
  const TimePoint begin = job.phase == JobPhase::kPreparing ? job.phase_since : job.started_at;
  return std::clamp(at, std::min(begin, turn.now), turn.now);
}

std::string exit_text(const Node& node, const WorkerExit& exit) {
  std::string text = "rank " + std::to_string(exit.global_rank) + " on " + node.info.hostname;
  switch (exit.cause) {
    case ExitCause::kSignaled:
      return text + " was ended by signal " + std::to_string(exit.signal);
    case ExitCause::kOutOfMemory:
      return text + " ran out of memory";
    case ExitCause::kExecFailed:
      return text + " could not be started (" + exit.stage + ")";
    case ExitCause::kLibraryMissing:
      return text + " lacks a shared library";
    case ExitCause::kUnkillable:
      return text + " does not end after SIGKILL";
    case ExitCause::kLost:
      return text + " was lost with its supervisor";
    default:
      return text + " ended with exit code " + std::to_string(exit.exit_code);
  }
}

// Whether the exit is one that we, or the agent after a failure, brought about.
bool is_consequence(const WorkerExit& exit) {
  return exit.cause == ExitCause::kStoppedByUs;
}

// RUNNING is booked as init until the first step, as replay while steps repeat, then as productive.
Account account_of(const Job& job, std::int64_t step) {
  if (step < 0) return Account::kInit;
  return step <= job.start_step ? Account::kReplay : Account::kProductive;
}

}  // namespace

void start_all(Turn& turn, Job& job) {
  job.was_started = true;
  job.started_at = turn.now;
  job.start_step = job.max_step;
  job.previous_nodes = static_cast<int>(job.members.size());
  job.missing_named = false;
  enter(turn, job, JobPhase::kRunning, std::to_string(job.members.size()) + " nodes");
  open_account(job.ledger, Account::kInit, turn.now);
  for (Member& member : job.members) {
    member.phase = MemberPhase::kRunning;
    send_start(turn, job, member);
  }
}

void send_start(Turn& turn, Job& job, Member& member) {
  Node* node = find_node(turn.state, member.node_id);
  if (!node) return;
  member.sent_at = turn.now;
  send(turn, *node, job.generation, Start{uuid_of(job), job.assigned_epoch, job.store_endpoint});
}

void take_worker_event(Turn& turn, Job& job, Node& node, const WorkerEvent& event) {
  if (event.phase != WorkerPhase::kExited || !event.exit) return;
  Member* member = find_member(job, node.info.node_id);
  if (!member || member->is_gone) return;
  const WorkerExit& exit = *event.exit;
  if (exit.cause == ExitCause::kOk) {
    member->finished_ranks.insert(exit.local_rank);
    const bool is_done = static_cast<int>(member->finished_ranks.size()) >= member->num_ranks;
    if (job.phase != JobPhase::kRunning) return;
    if (!job.first_done_at) job.first_done_at = turn.now;
    if (is_done) mark_done(turn, job, *member);
    return;
  }
  if (is_consequence(exit)) return;
  const bool has_code = exit.cause == ExitCause::kNonZero;
  fail_job(turn,
           job,
           {FailureKind::kWorker,
            seen_at(turn, job, node, exit),
            node.info.node_id,
            exit.global_rank,
            event.step,
            exit.cause,
            has_code ? exit.exit_code : exit.signal,
            exit_text(node, exit)});
}

void mark_done(Turn& turn, Job& job, Member& member) {
  if (job.phase != JobPhase::kRunning || member.phase == MemberPhase::kDone) return;
  member.phase = MemberPhase::kDone;
  if (!job.first_done_at) job.first_done_at = turn.now;
  if (++job.num_done == static_cast<int>(job.members.size())) {
    finish(turn, job, JobPhase::kSucceeded, "every rank ended with 0");
  }
}

void take_progress(Turn& turn, Job& job, const JobBeat& beat) {
  if (job.phase != JobPhase::kRunning || beat.max_step < 0) return;
  const Account account = account_of(job, beat.max_step);
  if (account > job.ledger.open) open_account(job.ledger, account, turn.now);
  job.max_step = std::max(job.max_step, beat.max_step);
}

void tick_running(Turn& turn, Job& job) {
  const JobDescription& wanted = *job.description;
  if (wanted.finish_skew && job.first_done_at &&
      turn.now >= *job.first_done_at + *wanted.finish_skew) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(*wanted.finish_skew);
    return fail_job(turn,
                    job,
                    {FailureKind::kFinishSkew,
                     turn.now,
                     "",
                     -1,
                     job.max_step,
                     ExitCause::kNonZero,
                     0,
                     "other ranks still ran " + std::to_string(seconds.count()) +
                         " s after the first had ended"});
  }
  if (!job.parked_since || turn.now < *job.parked_since + wanted.last_call) return;
  job.parked_since.reset();
  if (job.members.size() >= static_cast<std::size_t>(wanted.max_nodes)) return;
  StopPlan plan;
  plan.reason = StopReason::kScale;
  plan.text = "more nodes joined";
  begin_stopping(turn, job, std::move(plan));
}

}  // namespace accel::agent
