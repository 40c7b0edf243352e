// What operators and users ask for; already authorized.

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/coordinator/decisions/turn.h"
#include "agent/coordinator/state/shares.h"
#include "runtime/hostlist.h"

namespace accel::agent {
namespace {

void reply(Turn& turn,
           const StartJob& request,
           bool accepted,
           std::string message,
           std::string remedy = "see `accel status`, or use --name") {
  turn.actions.emplace_back(JobReply{
      request.request_id, request.job.job_uuid, accepted, std::move(message), std::move(remedy)});
}

void reply(
    Turn& turn, const StopJob& request, bool accepted, std::string message, std::string remedy) {
  if (request.request_id.empty()) return;
  turn.actions.emplace_back(JobReply{
      request.request_id, request.job_uuid, accepted, std::move(message), std::move(remedy)});
}

// Empty: nothing is wrong with it.
std::string fault_of(const JobDescription& job) {
  if (job.job_uuid.empty()) return "the job has no uuid";
  if (job.min_nodes < 1 || job.max_nodes < job.min_nodes) {
    return "nodes must be 1 <= min <= max, not " + std::to_string(job.min_nodes) + ':' +
           std::to_string(job.max_nodes);
  }
  if (job.procs_per_node < 1) {
    return "a node must have at least 1 process, not " + std::to_string(job.procs_per_node);
  }
  return {};
}

// People name their own jobs by the id; those that nodes bring along have no other name than the uuid.
const std::string* id_in_use(const State& state, const JobDescription& wanted) {
  if (!wanted.recruits || wanted.job_id.empty()) return nullptr;
  const auto same = [&](const auto& entry) {
    const JobDescription& known = *entry.second.description;
    return known.job_id == wanted.job_id && known.user == wanted.user;
  };
  return std::any_of(state.jobs.begin(), state.jobs.end(), same) ? &wanted.job_id : nullptr;
}

// Why there is no room for one more job of this user.
std::optional<std::string> fullness(const State& state, const StartJob& request) {
  const CoordinatorConfig& config = state.config;
  const std::string& user = request.job.user;
  CallerShares shares({.most = config.max_jobs,
                       .most_each = config.max_jobs_each,
                       .kept = config.max_jobs_kept,
                       .things = "jobs",
                       .favoured = "operators"},
                      request.is_of_operator ? std::vector{user} : std::vector<std::string>());
  for (const auto& [uuid, job] : state.jobs) {
    if (!is_terminal(job.phase)) shares.add(job.description->user);
  }
  return shares.take(user);
}

// Each job that ended was started: so there are never many more of them.
void forget_surplus(Turn& turn) {
  std::vector<std::pair<TimePoint, JobUuid>> ended;
  for (const auto& [uuid, job] : turn.state.jobs) {
    if (is_terminal(job.phase)) ended.emplace_back(job.phase_since, uuid);
  }
  if (ended.size() <= static_cast<std::size_t>(turn.state.config.keep_ended_jobs)) return;
  std::sort(ended.begin(), ended.end());
  std::vector<std::string> owners;
  for (const auto& [since, uuid] : ended)
    owners.push_back(turn.state.jobs.at(uuid).description->user);
  for (const std::size_t index : surplus_of(owners, turn.state.config.keep_ended_jobs))
    forget_job(turn, ended[index].second);
}

// Ends the generation to form another one; what stands still anyway needs nothing.
void form_anew(Turn& turn, Job& job, StopReason reason, const std::string& text) {
  if (job.phase != JobPhase::kPreparing && job.phase != JobPhase::kRunning) return;
  StopPlan plan;
  plan.reason = reason;
  plan.text = text;
  begin_stopping(turn, job, std::move(plan));
}

bool is_needed(Job& job, const NodeId& node) {
  const Member* member = find_member(job, node);
  return member && !member->is_gone && member->phase != MemberPhase::kDone &&
         member->phase != MemberPhase::kStopped;
}

// Than the stop that goes on.
bool is_harder(const Job& job, const StopJob& request) {
  return (request.kill && !job.stop.kill) || (request.grace && *request.grace < stop_grace(job));
}

// The stop is written down.
void carry_out(Turn& turn, Job& job, const StopJob& request) {
  switch (job.phase) {
    case JobPhase::kPreparing:
    case JobPhase::kRunning: {
      StopPlan plan;
      plan.reason = StopReason::kCancelled;
      plan.end = JobPhase::kCancelled;
      plan.kill = request.kill;
      plan.grace = request.grace;
      plan.text = kStoppedOnRequest;
      return begin_stopping(turn, job, std::move(plan));
    }
    case JobPhase::kStopping:
      job.stop.end = JobPhase::kCancelled;
      job.stop.text = kStoppedOnRequest;
      if (!is_harder(job, request)) return;
      job.stop.kill = job.stop.kill || request.kill;
      job.stop.grace = std::min(stop_grace(job), request.grace.value_or(Milliseconds::max()));
      for (Member& member : job.members) {
        if (!member.is_gone && member.phase != MemberPhase::kStopped) {
          send_stop(turn, job, member);
        }
      }
      return;
    default:
      return finish(turn, job, JobPhase::kCancelled, kStoppedOnRequest);
  }
}

}  // namespace

void start_job(Turn& turn, const StartJob& request) {
  if (const Job* known = find_job(turn.state, request.job.job_uuid)) {
    // While its record is being written the answer is still to come.
    if (known->phase != JobPhase::kPending) reply(turn, request, true, "accepted before");
    return;
  }
  if (std::string fault = fault_of(request.job); !fault.empty()) {
    return reply(turn, request, false, std::move(fault));
  }
  if (const auto full = fullness(turn.state, request)) {
    return reply(turn,
                 request,
                 false,
                 "no more jobs over several nodes for " + request.job.user + ": " + *full,
                 "wait for one to end, or stop one");
  }
  if (const std::string* taken = id_in_use(turn.state, request.job)) {
    return reply(turn, request, false, "there is a job '" + *taken + "' already");
  }
  forget_surplus(turn);
  Job& job = turn.state.jobs[request.job.job_uuid];
  job.description = std::make_shared<const JobDescription>(request.job);
  job.request_id = request.request_id;
  job.order = turn.state.next_order++;
  job.ledger.since = turn.now;
  enter(turn, job, JobPhase::kPending, "being written down");
  const std::uint64_t ticket = persist_job(turn, job, Sync::kYes);
  turn.state.tickets[ticket] = uuid_of(job);
}

void stop_job(Turn& turn, const StopJob& request) {
  const Job* job = find_job(turn.state, request.job_uuid);
  if (!job) return reply(turn, request, false, "there is no such job", "see `accel status`");
  // With the ticket of the record that tells of it: the record is made from the state.
  turn.state.stops.emplace(turn.state.next_ticket, request);
  persist_job(turn, *job, Sync::kYes);
}

void take_stop_written(Turn& turn, const StopJob& request, bool ok) {
  Job* job = find_job(turn.state, request.job_uuid);
  if (!job) return reply(turn, request, false, "there is no such job", "see `accel status`");
  if (!ok && !is_terminal(job->phase)) {
    persist_job(turn, *job, Sync::kNo);  // another record may tell of the stop
    return reply(
        turn, request, false, "the stop cannot be written down, so the job goes on", kWriteRemedy);
  }
  if (!is_over(*job)) carry_out(turn, *job, request);
  reply(turn, request, true, "", "");
}

void scale_job(Turn& turn, const ScaleJob& request) {
  Job* job = find_job(turn.state, request.job_uuid);
  if (!job || is_over(*job)) return;
  if (request.min_nodes < 1 || request.max_nodes < request.min_nodes) return;
  auto changed = std::make_shared<JobDescription>(*job->description);
  changed->min_nodes = request.min_nodes;
  changed->max_nodes = request.max_nodes;
  job->description = std::move(changed);
  // The old size is no longer what is waited for.
  job->previous_nodes = std::min(job->previous_nodes, request.max_nodes);
  persist_job(turn, *job, Sync::kNo);
  turn.frees_slots = true;  // nodes are asked, or given free, at the end of this turn
  const auto now = static_cast<std::size_t>(
      std::count_if(job->joined.begin(), job->joined.end(), [&](const auto& entry) {
        return !entry.second.spare && is_eligible(turn.state, entry.first, turn.now);
      }));
  const auto possible = std::min(now, static_cast<std::size_t>(request.max_nodes));
  if (job->phase == JobPhase::kRunning && possible != job->members.size()) {
    form_anew(turn,
              *job,
              StopReason::kScale,
              "scaled to " + std::to_string(request.min_nodes) + ':' +
                  std::to_string(request.max_nodes) + " nodes");
  }
  job->is_growing =
      job->description->recruits && possible < static_cast<std::size_t>(request.max_nodes);
}

void drain_node(Turn& turn, const DrainNode& request) {
  if (!is_host_name(request.node_id)) return;
  Node& node = turn.state.nodes[request.node_id];
  node.info.node_id = request.node_id;
  node.is_drained = true;
  node.drain_reason = request.reason;
  persist_node(turn, node);
  for (auto& [uuid, job] : turn.state.jobs) {
    if (is_needed(job, request.node_id)) {
      form_anew(turn, job, StopReason::kDrain, request.node_id + " is drained: " + request.reason);
    }
  }
}

void undrain_node(Turn& turn, const UndrainNode& request) {
  Node* node = find_node(turn.state, request.node_id);
  if (!node) return;
  node->is_drained = false;
  node->drain_reason.clear();
  // An operator who has looked at it vouches for it.
  node->quarantine = QuarantineState{};
  node->losses.clear();
  persist_node(turn, *node);
  send(turn, *node, 0, Quarantine{Milliseconds(0), ""});
  recruit_node(turn, *node);
}

void confirm_down(Turn& turn, const NodeDown& request) {
  Node* node = find_node(turn.state, request.node_id);
  if (!node) return;
  if (node->liveness != Liveness::kLost) lose_node(turn, *node, "said to be down");
  node->busy.clear();
  for (auto& [uuid, job] : turn.state.jobs) {
    Member* member = find_member(job, request.node_id);
    if (member && member->is_gone && job.phase == JobPhase::kStopping) {
      mark_stopped(turn, job, *member);
    }
  }
}

void leave(Turn& turn, Node& node, const Leave& message) {
  node.has_left = node.has_left || message.job_uuid.empty();
  for (auto& [uuid, job] : turn.state.jobs) {
    const bool is_meant = message.job_uuid.empty() || message.job_uuid == uuid;
    if (!is_meant || is_over(job)) continue;
    job.joined.erase(node.info.node_id);
    job.invited.erase(node.info.node_id);
    turn.frees_slots = true;
    if (is_needed(job, node.info.node_id)) {
      form_anew(turn, job, StopReason::kDrain, node.info.hostname + " leaves: " + message.reason);
    }
  }
}

}  // namespace accel::agent
