// PREPARING: the first phase of two. Everybody is told its part and parks its workers; only when all
// are ready and that is written down does anything run.
//
// No Assign says who the others are: in the order of their seats their names do not compress, and a list in each Assign
// makes the bytes of a generation grow as nodes x nodes. Who needs them asks for them page by page (GetMembers).

#include <algorithm>

#include "agent/coordinator/decisions/placement.h"
#include "agent/coordinator/decisions/turn.h"

namespace accel::agent {
namespace {

std::string first_address(const State& state, const NodeId& id) {
  const auto node = state.nodes.find(id);
  if (node == state.nodes.end()) return {};
  const NodeInfo& info = node->second.info;
  return info.addresses.empty() ? info.hostname : info.addresses.front();
}

Failure preparation_failure(const Turn& turn, const Node& node, std::string text, int exit_status) {
  return {FailureKind::kPreflight,
          turn.now,
          node.info.node_id,
          -1,
          -1,
          supervisor::ExitCause::kOk,
          exit_status,
          node.info.hostname + std::move(text)};
}

// How long it takes is up to the job's shim, checks and limit: its nodes lose their seats, and nothing else.
void leave_out_late(Turn& turn, Job& job) {
  const auto limit =
      std::chrono::duration_cast<std::chrono::seconds>(job.description->prepare_limit);
  const std::string text = "not ready within " + std::to_string(limit.count()) + " s";
  const int late_status = error_info(ErrorCode::kRendezvousTimeout).exit_status;
  std::optional<Failure> first;
  for (const Member& member : job.members) {
    Node* node =
        member.phase == MemberPhase::kPreparing ? find_node(turn.state, member.node_id) : nullptr;
    if (!node) continue;
    leave_out(turn, job, *node, text);
    if (!first) first = preparation_failure(turn, *node, " was " + text, late_status);
  }
  if (first) fail_job(turn, job, *std::move(first));
}

}  // namespace

void prepare(Turn& turn, Job& job, std::vector<Seat> seats) {
  job.generation = std::max(job.generation, job.generation_floor) + 1;
  job.assigned_epoch = turn.state.epoch;
  job.members.clear();
  job.seat_of.clear();
  job.store_endpoint.clear();
  job.num_ready = job.num_done = job.num_settled = 0;
  job.slowest_node.clear();
  job.slowest_took = Milliseconds(0);
  job.commit_ticket.reset();
  job.first_done_at.reset();
  job.stop = StopPlan{};

  for (Seat& seat : seats) {
    job.seat_of[seat.node_id] = job.members.size();
    Member member;
    member.node_id = std::move(seat.node_id);
    member.node_index = seat.node_index;
    member.first_rank = seat.first_rank;
    member.num_ranks = seat.num_ranks;
    job.members.push_back(std::move(member));
  }
  turn.frees_slots = true;  // the world may have shrunk
  for (auto& [id, joined] : job.joined) {
    const auto seat = job.seat_of.find(id);
    joined.previous_index = seat == job.seat_of.end() ? -1 : static_cast<int>(seat->second);
  }

  enter(turn, job, JobPhase::kPreparing, std::to_string(job.members.size()) + " nodes");
  open_account(job.ledger, Account::kSpawn, turn.now);
  for (Member& member : job.members) send_assign(turn, job, member);
}

void send_assign(Turn& turn, Job& job, Member& member) {
  Node* node = find_node(turn.state, member.node_id);
  if (!node) return;
  member.sent_at = turn.now;
  const Member& last = job.members.back();
  Assign assign;
  assign.job = job.description;
  assign.node_index = member.node_index;
  assign.first_rank = member.first_rank;
  assign.num_ranks = member.num_ranks;
  assign.world_size = last.first_rank + last.num_ranks;
  assign.num_nodes = static_cast<int>(job.members.size());
  assign.first_address = first_address(turn.state, job.members.front().node_id);
  assign.restart_count = job.history.total();
  assign.out_of_memory = job.history.out_of_memory;
  send(turn, *node, job.generation, std::move(assign));
}

void take_ready(Turn& turn, Job& job, Node& node, const Ready& ready) {
  Member* member = find_member(job, node.info.node_id);
  if (!member || job.phase != JobPhase::kPreparing || member->phase != MemberPhase::kPreparing) {
    return;
  }
  if (!ready.failed_checks.empty()) {
    const FailedCheck& check = ready.failed_checks.front();
    const std::string text = check.is_of_job
                                 ? check.detail
                                 : "preflight check '" + check.name + "' failed: " + check.detail;
    if (check.is_of_job) {
      leave_out(turn, job, node, text);
    } else {
      quarantine(turn, node, text);
    }
    const int status = check.is_of_job ? error_info(ErrorCode::kPreflightFailed).exit_status : 0;
    return fail_job(turn, job, preparation_failure(turn, node, ": " + text, status));
  }
  member->phase = MemberPhase::kPrepared;
  if (ready.took > job.slowest_took) {
    job.slowest_took = ready.took;
    job.slowest_node = node.info.node_id;
  }
  if (member->node_index == 0) job.store_endpoint = ready.store_endpoint;
  if (++job.num_ready == static_cast<int>(job.members.size())) commit(turn, job);
}

void commit(Turn& turn, Job& job) {
  // Written as it will be: whoever recovers from this record may find workers running.
  Job committed = job;
  committed.phase = JobPhase::kRunning;
  job.commit_ticket = persist_job(turn, committed, Sync::kYes);
  turn.state.tickets[*job.commit_ticket] = uuid_of(job);
}

void take_committed(Turn& turn, Job& job, bool ok) {
  job.commit_ticket.reset();
  if (ok) return start_all(turn, job);
  job.commit_retry_at = turn.now + turn.state.config.journal_retry;
  job.text = "all nodes are ready, but the commit cannot be written";
}

void tick_preparing(Turn& turn, Job& job) {
  const JobDescription& wanted = *job.description;
  const Duration waited = turn.now - job.phase_since;
  const bool all_ready = job.num_ready == static_cast<int>(job.members.size());
  if (all_ready) {
    if (job.commit_ticket) return;
    if (waited >= wanted.restart.regroup_timeout) {
      StopPlan plan;
      plan.end = JobPhase::kFailed;
      plan.text = job.text;
      begin_stopping(turn, job, std::move(plan));
    } else if (turn.now >= job.commit_retry_at) {
      commit(turn, job);
    }
    return;
  }
  if (waited < wanted.prepare_limit) return;
  leave_out_late(turn, job);
}

}  // namespace accel::agent
