#include "agent/coordinator/decisions/coordinator.h"

#include <algorithm>

#include "agent/coordinator/decisions/turn.h"

namespace accel::agent {
namespace {

void tick_job(Turn& turn, Job& job) {
  if (job.ending) return tick_ending(turn, job);
  switch (job.phase) {
    case JobPhase::kGathering:
    case JobPhase::kSuspended:
      return tick_gathering(turn, job);
    case JobPhase::kPreparing:
      return tick_preparing(turn, job);
    case JobPhase::kRunning:
      return tick_running(turn, job);
    case JobPhase::kStopping:
      return tick_stopping(turn, job);
    default:
      return;
  }
}

void tick(Turn& turn) {
  turn.state.ticked_at = turn.now;
  watch_nodes(turn);
  std::vector<JobUuid> old;
  for (auto& [uuid, job] : turn.state.jobs) {
    tick_job(turn, job);
    const bool is_old =
        is_terminal(job.phase) && turn.now - job.phase_since >= turn.state.config.keep_ended;
    if (is_old) old.push_back(uuid);
  }
  for (const JobUuid& uuid : old) forget_job(turn, uuid);
}

struct Dispatch {
  Turn& turn;

  void operator()(const Tick&) { tick(turn); }
  void operator()(const FromAgent& event) { receive(turn, event); }
  void operator()(const ConnectionLost& event) { lose_connection(turn, event.connection); }
  void operator()(const StartJob& request) { start_job(turn, request); }
  void operator()(const StopJob& request) { stop_job(turn, request); }
  void operator()(const ScaleJob& request) { scale_job(turn, request); }
  void operator()(const DrainNode& request) { drain_node(turn, request); }
  void operator()(const UndrainNode& request) { undrain_node(turn, request); }
  void operator()(const NodeDown& request) { confirm_down(turn, request); }
  void operator()(const Persisted& answer) { take_persisted(turn, answer); }
};

// When an invitation is repeated, or a node that was put aside may be asked.
void add_recruiting_moments(const State& state, const Job& job, std::vector<TimePoint>& moments) {
  if (!job.description->recruits) return;
  for (const auto& [id, asked_at] : job.invited) {
    moments.push_back(asked_at + state.config.resend_after);
  }
  for (const auto& [id, node] : state.nodes) {
    if (node.quarantine.ttl.count() > 0) moments.push_back(node.quarantine.until);
  }
}

// Room has come free: jobs that wait for it look again.
void use_freed_slots(Turn& turn) {
  for (auto& [uuid, job] : turn.state.jobs) {
    const bool is_waiting = job.phase == JobPhase::kGathering || job.phase == JobPhase::kSuspended;
    if (!job.description->recruits) continue;
    if (is_waiting) tick_gathering(turn, job);
    if (job.phase == JobPhase::kRunning) recruit(turn, job);
  }
}

// Every moment at which a Tick may change something about the job.
std::vector<TimePoint> moments_of(const State& state, const Job& job) {
  const JobDescription& wanted = *job.description;
  std::vector<TimePoint> moments;
  if (job.ending) return {job.ending->retry_at};
  switch (job.phase) {
    case JobPhase::kGathering:
    case JobPhase::kSuspended:
      moments = {job.gather_not_before,
                 job.phase_since + wanted.join_limit,
                 job.phase_since + wanted.restart.regroup_timeout};
      if (job.min_since) moments.push_back(*job.min_since + wanted.last_call);
      if (!job.missing_named) {
        moments.push_back(job.phase_since + state.config.name_missing_after);
      }
      add_recruiting_moments(state, job, moments);
      for (const auto& [id, joined] : job.joined) {
        const auto node = state.nodes.find(id);
        if (node != state.nodes.end() && node->second.quarantine.ttl.count() > 0) {
          moments.push_back(node->second.quarantine.until);
        }
      }
      break;
    case JobPhase::kPreparing:
      moments = {job.phase_since + wanted.prepare_limit,
                 job.phase_since + wanted.restart.regroup_timeout,
                 job.commit_retry_at};
      break;
    case JobPhase::kRunning:
      add_recruiting_moments(state, job, moments);
      if (job.parked_since) moments.push_back(*job.parked_since + wanted.last_call);
      if (wanted.finish_skew && job.first_done_at) {
        moments.push_back(*job.first_done_at + *wanted.finish_skew);
      }
      break;
    case JobPhase::kStopping:
      moments.push_back(job.stop.since + stop_patience(job));
      if (job.members.empty())
        moments.push_back(job.stop.since);  // taken over: nothing is left to stop
      for (const Member& member : job.members) {
        if (member.is_gone) moments.push_back(member.lease_over);
      }
      break;
    case JobPhase::kPending:
      break;
    default:
      moments.push_back(job.phase_since + state.config.keep_ended);
  }
  return moments;
}

}  // namespace

Step step(State state, const Event& event) {
  Step result{std::move(state), {}};
  if (result.state.is_outdated) return result;
  Turn turn{result.state, result.actions, event.at, event.chance};
  std::visit(Dispatch{turn}, event.what);
  if (turn.frees_slots) use_freed_slots(turn);
  return result;
}

TimePoint next_wake(const State& state) {
  TimePoint next = TimePoint::max();
  if (state.is_outdated) return next;
  const auto consider = [&](TimePoint at) {
    if (at > state.ticked_at) next = std::min(next, at);
  };
  for (const auto& [id, node] : state.nodes) consider(next_change(state, node));
  for (const auto& [uuid, job] : state.jobs) {
    for (const TimePoint at : moments_of(state, job)) consider(at);
  }
  return next;
}

std::vector<MemberView> members_page(const State& state,
                                     const JobUuid& job,
                                     std::size_t offset,
                                     std::size_t limit) {
  std::vector<MemberView> page;
  const auto found = state.jobs.find(job);
  if (found == state.jobs.end()) return page;
  const auto& members = found->second.members;
  for (std::size_t i = offset; i < members.size() && page.size() < limit; ++i) {
    const Member& member = members[i];
    MemberView view{member.node_id, "", member.node_index, member.first_rank, member.num_ranks};
    const auto node = state.nodes.find(member.node_id);
    if (node != state.nodes.end()) {
      const NodeInfo& info = node->second.info;
      view.address = info.addresses.empty() ? info.hostname : info.addresses.front();
    }
    page.push_back(std::move(view));
  }
  return page;
}

// ---- what several phases use ----

void enter(Turn& turn, Job& job, JobPhase phase, std::string text) {
  job.phase = phase;
  job.phase_since = turn.now;
  job.text = std::move(text);
  report(turn,
         ReportKind::kJobPhase,
         uuid_of(job),
         "",
         std::string(name_of(phase)) + ' ' + std::to_string(job.generation) + ": " + job.text);
}

Job* find_job(State& state, const JobUuid& uuid) {
  const auto found = state.jobs.find(uuid);
  return found == state.jobs.end() ? nullptr : &found->second;
}

Member* find_member(Job& job, const NodeId& id) {
  const auto seat = job.seat_of.find(id);
  return seat == job.seat_of.end() ? nullptr : &job.members[seat->second];
}

const JobUuid& uuid_of(const Job& job) {
  return job.description->job_uuid;
}

std::string_view name_of(JobPhase phase) {
  switch (phase) {
    case JobPhase::kPending:
      return "pending";
    case JobPhase::kGathering:
      return "gathering";
    case JobPhase::kPreparing:
      return "preparing";
    case JobPhase::kRunning:
      return "running";
    case JobPhase::kStopping:
      return "stopping";
    case JobPhase::kSuspended:
      return "suspended";
    case JobPhase::kSucceeded:
      return "succeeded";
    case JobPhase::kFailed:
      return "failed";
    case JobPhase::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

}  // namespace accel::agent
