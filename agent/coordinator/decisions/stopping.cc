// STOPPING: nothing of the generation may be left, then it is decided what comes.
//
// The decision waits for the end, because only then the first failure is known: a rank whose peer died
// fails within milliseconds, the peer's node is declared lost seconds later, and was the cause.

#include <algorithm>
#include <utility>

#include "agent/coordinator/decisions/turn.h"

namespace accel::agent {
namespace {

using supervisor::ExitCause;

// How long after an agent's last beat its workers are dead for certain, should it be cut off: clocks
// may differ by 1 % in speed, and the kill itself takes its time.
Duration lease_bound(const JobDescription& job) {
  return job.fence.lease * 101 / 100 + Milliseconds(500);
}

bool is_settled(const Member& member) {
  return member.is_gone || member.phase == MemberPhase::kStopped;
}

// An unreachable member may still have workers; with hard fencing its lease must be over.
bool may_still_run(const Job& job, const Member& member, TimePoint now) {
  return job.description->fence.fencing == Fencing::kHard && job.stop.was_started &&
         member.phase != MemberPhase::kStopped && now < member.lease_over;
}

struct Verdict {
  bool goes_on = true;
  Duration delay{};
  std::string text;
};

std::string crash_key(const Failure& failure) {
  return std::to_string(static_cast<int>(failure.cause)) + ':' + std::to_string(failure.code) +
         ':' + std::to_string(failure.global_rank) + ':' + std::to_string(failure.step);
}

// 1st, 2nd, 3rd, 4th, 11th.
std::string ordinal(int number) {
  const int last = number % 100 / 10 == 1 ? 0 : number % 10;
  const char* end = last == 1 ? "st" : last == 2 ? "nd" : last == 3 ? "rd" : "th";
  return std::to_string(number) + end;
}

// Counts the crash; true when it is one too many of the same.
bool repeats_itself(Job& job, const Failure& failure) {
  if (failure.kind != FailureKind::kWorker) {
    job.crashes = {};
    return false;
  }
  const std::string key = crash_key(failure);
  job.crashes.count = key == job.crashes.key ? job.crashes.count + 1 : 1;
  job.crashes.key = key;
  const int most = job.description->restart.max_same_crash;
  return most > 0 && job.crashes.count >= most;
}

Verdict judge_worker_failure(Turn& turn, Job& job, const Failure& failure) {
  const JobRestartPolicy& policy = job.description->restart;
  if (repeats_itself(job, failure)) {
    return {false, {}, failure.text + ", the same for the " + ordinal(job.crashes.count) + " time"};
  }
  const supervisor::GenerationFacts facts{
      failure.cause, job.stop.since - job.started_at, job.max_step > job.start_step};
  const auto decision = supervisor::decide_restart(policy.budget, job.history, facts, turn.chance);
  switch (decision.verdict) {
    case supervisor::RestartVerdict::kNotWanted:
      return {false, {}, failure.text + "; no restart is wanted after that (on_cause)"};
    case supervisor::RestartVerdict::kSameCrash:  // counted above, over all nodes
    case supervisor::RestartVerdict::kWouldFailAgain:
      return {false, {}, failure.text + "; it would fail again"};
    case supervisor::RestartVerdict::kBudgetSpent:
      return {false,
              {},
              failure.text + "; all " + std::to_string(policy.budget.max_restarts) +
                  " restarts are used up"};
    case supervisor::RestartVerdict::kMemoryBudgetSpent:
      return {false,
              {},
              failure.text + "; all " + std::to_string(policy.budget.max_out_of_memory) +
                  " restarts after running out of memory are used up"};
    case supervisor::RestartVerdict::kRestart:
      break;
  }
  job.history = decision.history;
  ++job.restarts_by_cause[failure.cause];
  return {true, decision.delay, failure.text};
}

Verdict judge(Turn& turn, Job& job) {
  if (!job.stop.failure) return {true, {}, job.stop.text};
  const Failure& failure = *job.stop.failure;
  const bool is_of_node =
      failure.kind == FailureKind::kNodeLost || failure.kind == FailureKind::kPreflight;
  // Nothing had run: the node is at fault, and its own count of losses deals with it. Not at once: a node whose lease is
  // over drops what it parks until its next beat is acked.
  if (is_of_node && !job.stop.was_started) {
    const bool is_left_out =
        failure.kind == FailureKind::kPreflight && job.declined.count(failure.node_id) > 0;
    if (is_left_out && !can_be_formed(turn, job)) return {false, {}, failure.text};
    return {true, turn.state.config.beat_every, failure.text};
  }
  return judge_worker_failure(turn, job, failure);
}

void conclude(Turn& turn, Job& job) {
  if (job.stop.failure) job.last_failure = job.stop.failure;
  if (job.stop.end) return finish(turn, job, *job.stop.end, job.stop.text);
  if (job.stop.failure) {
    report(turn,
           ReportKind::kFirstFailure,
           uuid_of(job),
           job.stop.failure->node_id,
           job.stop.failure->text);
  }
  const Verdict verdict = judge(turn, job);
  if (!verdict.goes_on) return finish(turn, job, JobPhase::kFailed, verdict.text);
  job.gather_not_before = turn.now + verdict.delay;
  const bool lost_somebody = std::any_of(
      job.members.begin(), job.members.end(), [](const Member& member) { return member.is_gone; });
  if (lost_somebody) {
    job.gather_not_before =
        std::max(job.gather_not_before, job.stop.since + turn.state.config.coalesce);
  }
  Job next = job;
  next.phase = JobPhase::kGathering;
  persist_job(turn, next, Sync::kNo);
  begin_gathering(turn, job, verdict.text);
}

void check_stopped(Turn& turn, Job& job) {
  if (job.phase != JobPhase::kStopping || is_over(job)) return;
  if (job.num_settled < static_cast<int>(job.members.size())) return;
  const bool waits = std::any_of(job.members.begin(), job.members.end(), [&](const Member& member) {
    return may_still_run(job, member, turn.now);
  });
  if (!waits) conclude(turn, job);
}

NoticeKind notice_of(JobPhase phase) {
  if (phase == JobPhase::kSucceeded) return NoticeKind::kSucceeded;
  return phase == JobPhase::kFailed ? NoticeKind::kFailed : NoticeKind::kCancelled;
}

}  // namespace

void begin_stopping(Turn& turn, Job& job, StopPlan plan) {
  if (is_over(job)) return;
  plan.was_started = job.phase == JobPhase::kRunning;
  plan.kill = plan.kill || !plan.was_started;
  plan.since = turn.now;
  const bool was_committing = job.commit_ticket.has_value();
  job.stop = std::move(plan);
  job.commit_ticket.reset();
  job.parked_since.reset();
  enter(turn, job, JobPhase::kStopping, job.stop.text);
  open_account(job.ledger, Account::kStop, turn.now);
  // The commit may be written by now: what is written after it takes it back.
  if (was_committing) persist_job(turn, job, Sync::kNo);
  for (Member& member : job.members) {
    if (!is_settled(member)) send_stop(turn, job, member);
  }
  check_stopped(turn, job);
}

Milliseconds stop_grace(const Job& job) {
  const Milliseconds asked = job.description->stop.grace;
  return std::min(asked, job.stop.grace.value_or(asked));
}

void send_stop(Turn& turn, Job& job, Member& member) {
  Node* node = find_node(turn.state, member.node_id);
  if (!node) return;
  member.sent_at = turn.now;
  send(turn,
       *node,
       job.generation,
       Stop{uuid_of(job), stop_grace(job), job.stop.reason, job.stop.kill});
}

void mark_stopped(Turn& turn, Job& job, Member& member) {
  if (member.phase == MemberPhase::kStopped) return;
  if (!member.is_gone) ++job.num_settled;
  member.phase = MemberPhase::kStopped;
  check_stopped(turn, job);
}

void mark_gone(Turn& turn, Job& job, Member& member, TimePoint heard_at) {
  if (member.is_gone) return;
  if (member.phase != MemberPhase::kStopped) ++job.num_settled;
  member.is_gone = true;
  member.lease_over = heard_at + lease_bound(*job.description);
  check_stopped(turn, job);
}

void renew_leases(Turn& turn, const Node& node) {
  for (const auto& [uuid, generation] : node.busy) {
    Job* job = find_job(turn.state, uuid);
    if (!job || job->phase != JobPhase::kStopping || job->generation != generation) continue;
    Member* member = find_member(*job, node.info.node_id);
    if (!member || !member->is_gone) continue;
    member->lease_over = std::max(member->lease_over, turn.now + lease_bound(*job->description));
  }
}

void fail_job(Turn& turn, Job& job, Failure failure) {
  if (is_over(job)) return;
  if (job.phase == JobPhase::kStopping) {
    auto& first = job.stop.failure;
    if (first && failure.at < first->at) {
      job.stop.text = failure.text;
      first = std::move(failure);
    }
    return;
  }
  if (job.phase != JobPhase::kPreparing && job.phase != JobPhase::kRunning) return;
  if (job.phase == JobPhase::kRunning) {
    rebook_since(job.ledger, Account::kDetect, failure.at, turn.now);
  }
  StopPlan plan;
  plan.reason =
      failure.kind == FailureKind::kNodeLost ? StopReason::kNodeLost : StopReason::kFailure;
  plan.text = failure.text;
  plan.failure = std::move(failure);
  begin_stopping(turn, job, std::move(plan));
}

Duration stop_patience(const Job& job) {
  // Beyond its grace and its kill. Its agent kills a shim that does not obey 25 s after the grace (agent/shims/shim_link.h).
  constexpr Milliseconds kPatience{45'000};
  return (job.stop.kill ? Milliseconds(0) : stop_grace(job)) + job.description->stop.kill_wait +
         kPatience;
}

// Its agent has killed a part that does not obey before, and this one says nothing. But its node beats, and other users'
// workers there are none of this job's business.
void tick_stopping(Turn& turn, Job& job) {
  if (turn.now - job.stop.since >= stop_patience(job)) {
    for (Member& member : job.members) {
      if (is_settled(member)) continue;
      Node* node = find_node(turn.state, member.node_id);
      if (!node || node->liveness == Liveness::kLost) continue;
      leave_out(turn, job, *node, "did not stop its workers");
      mark_gone(turn, job, member, node->session.heard_at);
      if (job.phase != JobPhase::kStopping) return;
    }
  }
  check_stopped(turn, job);
}

void finish(Turn& turn, Job& job, JobPhase phase, std::string text) {
  if (is_over(job)) return;
  open_account(job.ledger, Account::kClosed, turn.now);
  if (job.max_step < 0) book_stepless(job.ledger);
  job.commit_ticket.reset();
  job.ending = Ending{phase, std::move(text), std::nullopt, turn.now};
  tick_ending(turn, job);
}

void tick_ending(Turn& turn, Job& job) {
  Ending& ending = *job.ending;
  if (ending.ticket || turn.now < ending.retry_at) return;
  ending.ticket = persist_job(turn, job, Sync::kYes);
  turn.state.tickets[*ending.ticket] = uuid_of(job);
}

void take_ended(Turn& turn, Job& job, bool ok) {
  if (!ok) {
    job.ending->ticket.reset();
    job.ending->retry_at = turn.now + turn.state.config.journal_retry;
    job.text = "its end cannot be written down: " + job.ending->text;
    return;
  }
  Ending ending = *std::exchange(job.ending, std::nullopt);
  enter(turn, job, ending.phase, std::move(ending.text));
  turn.frees_slots = true;
  for (const auto& [id, joined] : job.joined) {
    if (Node* node = find_node(turn.state, id)) {
      send(turn, *node, job.generation, Notice{uuid_of(job), notice_of(job.phase), job.text});
    }
  }
}

}  // namespace accel::agent
