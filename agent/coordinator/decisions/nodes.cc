// The failure detector, and what a loss does.

#include <algorithm>

#include "agent/coordinator/decisions/turn.h"

namespace accel::agent {
namespace {

bool runs_something(const State& state, const Node& node) {
  return std::any_of(state.jobs.begin(), state.jobs.end(), [&](const auto& entry) {
    const Job& job = entry.second;
    return job.phase == JobPhase::kRunning && job.seat_of.count(node.info.node_id) > 0;
  });
}

// When a node that stays as it is counts as lost.
TimePoint lost_at(const State& state, const Node& node) {
  const Session& session = node.session;
  TimePoint at = session.heard_at + state.config.lost_after;
  if (!session.is_connected) {
    Milliseconds window = state.config.reconnect_window;
    if (node.info.readopt_window > window && runs_something(state, node)) {
      window = node.info.readopt_window;
    }
    at = std::min(at, session.connection_lost_at + window);
  }
  return std::max(at, node.lost_not_before);
}

// Losses older than the window do not count against a node.
void remember_loss(Turn& turn, Node& node) {
  const CoordinatorConfig& config = turn.state.config;
  node.losses.push_back(turn.now);
  while (!node.losses.empty() && turn.now - node.losses.front() > config.flap_window) {
    node.losses.pop_front();
  }
  if (node.losses.size() < static_cast<std::size_t>(config.flap_losses)) return;
  const auto minutes = std::chrono::duration_cast<std::chrono::minutes>(config.flap_window);
  quarantine(turn,
             node,
             "lost " + std::to_string(node.losses.size()) + " times within " +
                 std::to_string(minutes.count()) + " minutes");
  node.losses.clear();
}

void lose_in_job(Turn& turn, Job& job, Node& node, const std::string& why) {
  if (is_over(job)) return;
  const bool was_joined = job.joined.erase(node.info.node_id) > 0;
  job.invited.erase(node.info.node_id);
  if (was_joined && job.phase == JobPhase::kGathering) {
    job.gather_not_before = std::max(job.gather_not_before, turn.now + turn.state.config.coalesce);
  }
  Member* member = find_member(job, node.info.node_id);
  if (!member || member->is_gone) return;
  const bool was_needed =
      member->phase != MemberPhase::kStopped && member->phase != MemberPhase::kDone;
  // First the failure: the last member that is gone may end STOPPING, which judges it. The last thing
  // that is known to be well is its last beat.
  if (was_needed) {
    fail_job(turn,
             job,
             {FailureKind::kNodeLost,
              node.session.heard_at,
              node.info.node_id,
              -1,
              -1,
              supervisor::ExitCause::kLost,
              0,
              node.info.hostname + " was lost: " + why});
  }
  mark_gone(turn, job, *member, node.session.heard_at);
}

}  // namespace

Node* find_node(State& state, const NodeId& id) {
  const auto found = state.nodes.find(id);
  return found == state.nodes.end() ? nullptr : &found->second;
}

void report(Turn& turn, ReportKind kind, const JobUuid& job, const NodeId& node, std::string text) {
  turn.actions.emplace_back(Report{kind, job, node, std::move(text)});
}

bool is_quarantined(const Node& node, TimePoint now) {
  return node.quarantine.ttl.count() > 0 && now < node.quarantine.until;
}

bool is_eligible(const State& state, const NodeId& id, TimePoint now) {
  const auto found = state.nodes.find(id);
  return found != state.nodes.end() && found->second.liveness == Liveness::kLive &&
         !found->second.is_drained && !is_quarantined(found->second, now);
}

void quarantine(Turn& turn, Node& node, const std::string& reason) {
  const CoordinatorConfig& config = turn.state.config;
  Milliseconds& ttl = node.quarantine.ttl;
  ttl = ttl.count() == 0 ? config.quarantine_first : std::min(ttl * 2, config.quarantine_most);
  node.quarantine.until = turn.now + ttl;
  node.quarantine.reason = reason;
  report(turn, ReportKind::kNodeQuarantined, "", node.info.node_id, reason);
  send(turn, node, 0, Quarantine{ttl, reason});
  persist_node(turn, node);
}

void lose_node(Turn& turn, Node& node, const std::string& why) {
  node.liveness = Liveness::kLost;
  report(turn, ReportKind::kNodeLost, "", node.info.node_id, why);
  // It may still hear us: a silent node on a good connection, a stopped process.
  send(turn, node, 0, Fenced{FenceReason::kDeclaredLost});
  if (!node.has_left) remember_loss(turn, node);
  for (auto& [uuid, job] : turn.state.jobs) lose_in_job(turn, job, node, why);
}

TimePoint next_change(const State& state, const Node& node) {
  if (node.liveness == Liveness::kLost) return TimePoint::max();
  const TimePoint lost = lost_at(state, node);
  if (node.liveness == Liveness::kSuspect) return lost;
  return std::min(lost, node.session.heard_at + state.config.suspect_after);
}

void watch_nodes(Turn& turn) {
  for (auto& [id, node] : turn.state.nodes) {
    if (node.liveness == Liveness::kLost) continue;
    if (turn.now >= lost_at(turn.state, node)) {
      const auto silent =
          std::chrono::duration_cast<Milliseconds>(turn.now - node.session.heard_at);
      lose_node(turn,
                node,
                node.session.is_connected ? "no beat for " + std::to_string(silent.count()) + " ms"
                                          : "its connection broke and it did not come back");
    } else if (node.liveness == Liveness::kLive &&
               turn.now >= node.session.heard_at + turn.state.config.suspect_after) {
      node.liveness = Liveness::kSuspect;
      report(turn, ReportKind::kNodeSuspect, "", id, "no beat");
    }
  }
}

}  // namespace accel::agent
