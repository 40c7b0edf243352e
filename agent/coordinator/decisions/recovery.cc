// How a coordinator begins: knowing nothing, or with what another one wrote.
//
// A recovered job runs, as far as its record says; the agents know better and will say so. Until the
// rebuild window is over nobody is lost: agents need that long to find the new coordinator. A lease
// that the old one granted began before now, so counting it from now is on the safe side.

#include <algorithm>

#include "agent/coordinator/decisions/coordinator.h"
#include "agent/coordinator/decisions/turn.h"
#include "agent/coordinator/state/record_text.h"

namespace accel::agent {
namespace {

// A node that ought to be there, and has not said Hello yet.
void expect_node(State& state, const NodeInfo& info, TimePoint now) {
  Node& node = state.nodes[info.node_id];
  node.info = info;
  node.liveness = Liveness::kSuspect;
  node.session.heard_at = now;
  node.session.connection_lost_at = now;
  node.lost_not_before = now + state.config.rebuild_window;
}

void restore_members(State& state, Job& job, std::vector<RecordedMember> members, TimePoint now) {
  for (RecordedMember& recorded : members) {
    Member member;
    member.node_id = recorded.node.node_id;
    member.node_index = static_cast<int>(job.members.size());
    member.first_rank = recorded.first_rank;
    member.num_ranks = recorded.num_ranks;
    member.phase = MemberPhase::kRunning;
    job.seat_of[member.node_id] = job.members.size();
    Joined& joined = job.joined[member.node_id];
    joined.slots = recorded.num_ranks;
    joined.previous_index = member.node_index;
    joined.order = job.next_order++;
    job.members.push_back(std::move(member));
    if (!is_terminal(job.phase)) expect_node(state, recorded.node, now);
  }
  job.num_ready = static_cast<int>(job.members.size());
}

void restore_job(State& state, Job job, std::vector<RecordedMember> members, TimePoint now) {
  job.phase_since = now;
  job.started_at = now;
  job.ledger.since = now;
  state.next_order = std::max(state.next_order, job.order + 1);
  restore_members(state, job, std::move(members), now);
  if (is_terminal(job.phase)) {
    job.ledger.open = Account::kClosed;
  } else if (job.stop.end) {
    // Somebody was told that it is stopped, whatever it did then: what is left of it is told so too.
    job.phase = JobPhase::kStopping;
    job.stop.reason = StopReason::kCancelled;
    job.stop.text = job.text = kStoppedOnRequest;
    job.stop.since = now;
    job.ledger.open = Account::kStop;
  } else if (job.phase == JobPhase::kRunning) {
    job.was_started = true;
    job.previous_nodes = static_cast<int>(job.members.size());
    job.ledger.open = Account::kProductive;
  } else {
    job.phase = JobPhase::kGathering;
    job.ledger.open = Account::kWaiting;
  }
  const JobUuid uuid = uuid_of(job);
  state.jobs[uuid] = std::move(job);
}

}  // namespace

Step found(std::uint64_t epoch, CoordinatorConfig config, TimePoint now) {
  Step result;
  result.state.config = config;
  result.state.epoch = epoch;
  Turn turn{result.state, result.actions, now};
  persist_epoch(turn);
  return result;
}

std::uint64_t recorded_epoch(const std::vector<Record>& records) {
  std::uint64_t highest = 0;
  for (const Record& record : records) {
    if (kind_of(record) != RecordKind::kEpoch) continue;
    if (const auto epoch = read_epoch(record)) highest = std::max(highest, *epoch);
  }
  return highest;
}

Result<Step> recover(const std::vector<Record>& records,
                     std::uint64_t epoch,
                     CoordinatorConfig config,
                     TimePoint now) {
  if (epoch <= recorded_epoch(records)) {
    return Error(ErrorCode::kInvalidArgument,
                 "leader epoch " + std::to_string(epoch) + " is not higher than " +
                     std::to_string(recorded_epoch(records)) + ", which is recorded",
                 "take over with a higher epoch");
  }
  Step result = found(epoch, config, now);
  for (const Record& record : records) {
    if (kind_of(record) == RecordKind::kNode) {
      auto node = read_node(record, now);
      if (!node) return node.error();
      result.state.nodes[node->info.node_id] = *std::move(node);
    }
  }
  for (const Record& record : records) {
    if (kind_of(record) != RecordKind::kJob) continue;
    auto job = read_job(record);
    if (!job) return job.error();
    restore_job(result.state, std::move(job->first), std::move(job->second), now);
  }
  return result;
}

}  // namespace accel::agent
