// RUNNING: workers run; who fails first, who is done, how far the job is.

#include <algorithm>
#include <cmath>

#include "agent/coordinator/decisions/turn.h"
#include "runtime/text/seconds_text.h"

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
      return text + " could not be started (" + (exit.detail.empty() ? exit.stage : exit.detail) +
             ")";
    case ExitCause::kLibraryMissing:
      return text + " lacks a shared library";
    case ExitCause::kUnkillable:
      return text + " does not end after SIGKILL";
    case ExitCause::kLost:
      return text + " was lost with its supervisor";
    case ExitCause::kHang:
      return text + " hangs: " + (exit.detail.empty() ? "it makes no progress" : exit.detail);
    default:
      return text + " ended with exit code " + std::to_string(exit.exit_code);
  }
}

// Whether the exit is one that we, or the agent after a failure, brought about.
bool is_consequence(const WorkerExit& exit) {
  return exit.cause == ExitCause::kStoppedByUs;
}

// The rank that stopped first, over all nodes: the lowest step, then the longest silence.
struct FirstSilent {
  const Member* member = nullptr;
  int local_rank = 0;
  Member::RankSteps steps;
};

FirstSilent first_silent(const Job& job) {
  FirstSilent first;
  for (const Member& member : job.members) {
    for (std::size_t i = 0; i < member.steps.size(); ++i) {
      const Member::RankSteps& steps = member.steps[i];
      const bool is_earlier =
          steps.step >= 0 &&
          (first.member == nullptr || std::pair(steps.step, steps.reported_at) <
                                          std::pair(first.steps.step, first.steps.reported_at));
      if (is_earlier) first = {&member, static_cast<int>(i), steps};
    }
  }
  return first;
}

// Each node sees its own ranks alone: the one that names a hang first may only have waited for another
// node's rank. That one is the failure, when it stood at a lower step, or was silent for longer than
// beats are apart.
void blame_first_silent(const Turn& turn, const Job& job, Failure& hang) {
  const FirstSilent first = first_silent(job);
  if (first.member == nullptr || hang.step < 0) return;
  const int rank = first.member->first_rank + first.local_rank;
  if (rank == hang.global_rank) return;
  const Member* own = nullptr;
  for (const Member& member : job.members) {
    if (member.node_id == hang.node_id) own = &member;
  }
  const auto local = static_cast<std::size_t>(hang.global_rank - (own ? own->first_rank : 0));
  const bool is_known = own && hang.global_rank >= own->first_rank && local < own->steps.size();
  const TimePoint reported_at = is_known ? own->steps[local].reported_at : turn.now;
  const Duration slack = 2 * turn.state.config.beat_every;
  const bool is_earlier =
      first.steps.step < hang.step ||
      (first.steps.step == hang.step && first.steps.reported_at + slack < reported_at);
  if (!is_earlier) return;
  const auto node = turn.state.nodes.find(first.member->node_id);
  const std::string host =
      node == turn.state.nodes.end() ? first.member->node_id : node->second.info.hostname;
  hang.text = "rank " + std::to_string(rank) + " on " + host + " stopped first, at step " +
              std::to_string(first.steps.step) + ", silent for " +
              seconds_text(turn.now - first.steps.reported_at) + " (noticed because " + hang.text +
              ")";
  hang.node_id = first.member->node_id;
  hang.global_rank = rank;
  hang.step = first.steps.step;
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
  job.step_times.restart(turn.now);
  for (Member& member : job.members) member.steps.clear();
  job.previous_nodes = static_cast<int>(job.members.size());
  job.missing_named = false;
  job.is_growing = false;
  std::string text = std::to_string(job.members.size()) + " nodes";
  const Node* slowest = find_node(turn.state, job.slowest_node);
  if (slowest && job.members.size() > 1) {
    text += ", the last one (" + slowest->info.hostname + ") ready after " +
            seconds_text(job.slowest_took);
  }
  enter(turn, job, JobPhase::kRunning, std::move(text));
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
  Failure failure = {FailureKind::kWorker,
                     seen_at(turn, job, node, exit),
                     node.info.node_id,
                     exit.global_rank,
                     event.step,
                     exit.cause,
                     has_code ? exit.exit_code : exit.signal,
                     exit_text(node, exit)};
  if (exit.cause == ExitCause::kHang) blame_first_silent(turn, job, failure);
  fail_job(turn, job, std::move(failure));
}

void mark_done(Turn& turn, Job& job, Member& member) {
  if (job.phase != JobPhase::kRunning || member.phase == MemberPhase::kDone) return;
  member.phase = MemberPhase::kDone;
  if (!job.first_done_at) job.first_done_at = turn.now;
  if (++job.num_done == static_cast<int>(job.members.size())) {
    finish(turn, job, JobPhase::kSucceeded, "every rank ended with 0");
  }
}

void take_progress(Turn& turn, Job& job, Member& member, const JobBeat& beat) {
  if (job.phase != JobPhase::kRunning || is_over(job) || beat.max_step < 0) return;
  const auto num_ranks = std::min(beat.ranks.size(), static_cast<std::size_t>(member.num_ranks));
  member.steps.resize(num_ranks);
  for (std::size_t i = 0; i < num_ranks; ++i) {
    const RankProgress& rank = beat.ranks[i];
    member.steps[i] = {rank.step, turn.now - rank.silent_for};
    if (rank.step < 0) continue;
    job.step_times.see(
        member.first_rank + static_cast<int>(i), static_cast<std::uint64_t>(rank.step), turn.now);
  }
  const Account account = account_of(job, beat.max_step);
  if (account > job.ledger.open) open_account(job.ledger, account, turn.now);
  job.max_step = std::max(job.max_step, beat.max_step);
}

void tell_stragglers(Turn& turn, Job& job) {
  for (const supervisor::SlowRank& slow : job.step_times.compare(turn.now)) {
    const auto own =
        std::find_if(job.members.begin(), job.members.end(), [&](const Member& member) {
          return slow.global_rank >= member.first_rank &&
                 slow.global_rank < member.first_rank + member.num_ranks;
        });
    const auto percent = std::lround(100.0 * (static_cast<double>(slow.step_time.count()) /
                                                  static_cast<double>(slow.median.count()) -
                                              1));
    const auto ms = [](Duration time) {
      return std::to_string(std::chrono::duration_cast<Milliseconds>(time).count()) + " ms";
    };
    report(turn,
           ReportKind::kStraggler,
           uuid_of(job),
           own == job.members.end() ? "" : own->node_id,
           "rank " + std::to_string(slow.global_rank) + " is " + std::to_string(percent) +
               " % slower than the job's median: " + ms(slow.step_time) + " a step instead of " +
               ms(slow.median));
  }
}

void tick_running(Turn& turn, Job& job) {
  tell_stragglers(turn, job);
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
  recruit(turn, job);
  if (!job.parked_since || turn.now < *job.parked_since + wanted.last_call) return;
  job.parked_since.reset();
  if (job.members.size() >= static_cast<std::size_t>(wanted.max_nodes)) return;
  StopPlan plan;
  plan.reason = StopReason::kScale;
  plan.text = "more nodes joined";
  begin_stopping(turn, job, std::move(plan));
}

}  // namespace accel::agent
