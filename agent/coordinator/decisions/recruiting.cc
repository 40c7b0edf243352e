// Recruiting: which nodes are asked to take part in a job that came by Control.
//
// Nodes are asked up to max_nodes, those that run least first, whenever the job lacks some: while it
// gathers or is suspended, after `accel scale`, and while it runs smaller than it may (they wait for
// the next restart then). A node that declines is not asked again; one that does not answer is asked
// again, and others beside it.
//
// Slots are held by seats alone: of a generation that is under way, or, between two generations, of
// the nodes that had one. A job that only waits holds nothing, so two that wait cannot block each
// other; who has enough nodes first takes its seats, and the other one goes on waiting.
//
// Jobs that a node runs alone hold slots too. Who was there first stays: a node with a seat keeps it
// in the next generation, whatever came there beside it.

#include <algorithm>

#include "agent/coordinator/decisions/turn.h"

namespace accel::agent {
namespace {

int slots_held(const Job& job, const NodeId& id) {
  switch (job.phase) {
    case JobPhase::kPreparing:
    case JobPhase::kRunning:
    case JobPhase::kStopping: {
      const auto seat = job.seat_of.find(id);
      if (seat == job.seat_of.end()) return 0;
      const Member& member = job.members[seat->second];
      return member.is_gone ? 0 : member.num_ranks;
    }
    case JobPhase::kGathering:
    case JobPhase::kSuspended: {
      const auto joined = job.joined.find(id);
      const bool had_seat = joined != job.joined.end() && joined->second.previous_index >= 0;
      return had_seat ? joined->second.slots : 0;
    }
    default:
      return 0;
  }
}

int slots_held_by_others(const State& state, const Job& job, const Node& node) {
  const NodeId& id = node.info.node_id;
  int held = slots_held(job, id) > 0 ? 0 : node.slots_taken;
  for (const auto& [uuid, other] : state.jobs) {
    if (&other != &job) held += slots_held(other, id);
  }
  return held;
}

// Takes part, as far as its agent knows.
bool is_joined(const Job& job, const NodeId& id) {
  const auto joined = job.joined.find(id);
  return joined != job.joined.end() && !joined->second.is_forgotten;
}

bool wants_nodes(const Job& job) {
  if (!job.description->recruits || is_over(job)) return false;
  if (job.phase == JobPhase::kRunning) {
    return job.members.size() < static_cast<std::size_t>(job.description->max_nodes);
  }
  return job.phase == JobPhase::kGathering || job.phase == JobPhase::kSuspended;
}

bool may_ask(const Turn& turn, const Job& job, const Node& node) {
  const NodeId& id = node.info.node_id;
  const auto asked = job.invited.find(id);
  const bool waits_for_answer =
      asked != job.invited.end() && turn.now < asked->second + turn.state.config.resend_after;
  return node.session.is_connected && !node.has_left && !waits_for_answer && !is_joined(job, id) &&
         !job.declined.count(id) && is_eligible(turn.state, id, turn.now) &&
         has_room(turn.state, job, node);
}

void invite(Turn& turn, Job& job, Node& node) {
  job.invited[node.info.node_id] = turn.now;
  send(turn, node, 0, Invite{job.description});
}

// A node that may be asked. Those that were not asked yet come first, then those asked longest ago.
struct Idle {
  TimePoint asked_at{};
  int slots_held = 0;
  Node* node = nullptr;
};

// Nodes that take part already, or were asked and have not let us wait long.
std::size_t num_expected(const Turn& turn, const Job& job) {
  const auto present = std::count_if(job.joined.begin(), job.joined.end(), [&](const auto& entry) {
    const auto node = turn.state.nodes.find(entry.first);
    return !entry.second.spare && !entry.second.is_forgotten && !job.declined.count(entry.first) &&
           node != turn.state.nodes.end() && is_eligible(turn.state, entry.first, turn.now) &&
           has_room(turn.state, job, node->second);
  });
  const auto asked = std::count_if(job.invited.begin(), job.invited.end(), [&](const auto& entry) {
    return turn.now < entry.second + turn.state.config.resend_after;
  });
  return static_cast<std::size_t>(present + asked);
}

}  // namespace

bool has_room(const State& state, const Job& job, const Node& node) {
  if (!job.description->recruits || node.info.slots <= 0) return true;
  const auto joined = job.joined.find(node.info.node_id);
  const int needed =
      joined == job.joined.end() ? job.description->procs_per_node : joined->second.slots;
  return slots_held_by_others(state, job, node) + needed <= node.info.slots;
}

void recruit(Turn& turn, Job& job) {
  if (!wants_nodes(job)) return;
  const auto expected = num_expected(turn, job);
  const auto most = static_cast<std::size_t>(job.description->max_nodes);
  if (expected >= most) return;
  std::vector<Idle> idle;
  for (auto& [id, node] : turn.state.nodes) {
    if (!may_ask(turn, job, node)) continue;
    const auto asked = job.invited.find(id);
    idle.push_back({asked == job.invited.end() ? TimePoint::min() : asked->second,
                    slots_held_by_others(turn.state, job, node),
                    &node});
  }
  std::stable_sort(idle.begin(), idle.end(), [](const Idle& a, const Idle& b) {
    return std::pair(a.asked_at, a.slots_held) < std::pair(b.asked_at, b.slots_held);
  });
  const std::size_t missing = std::min(most - expected, idle.size());
  for (std::size_t i = 0; i < missing; ++i) invite(turn, job, *idle[i].node);
}

void recruit_node(Turn& turn, Node& node) {
  for (auto& [uuid, job] : turn.state.jobs) {
    // Counted roughly: ten thousand nodes that come at once must not be compared with each other.
    const bool is_full = !job.joined.count(node.info.node_id) &&
                         job.joined.size() + job.invited.size() >=
                             static_cast<std::size_t>(job.description->max_nodes);
    if (!is_full && wants_nodes(job) && may_ask(turn, job, node)) invite(turn, job, node);
  }
}

void forget_joined(Turn& turn, Node& node, const Hello& hello) {
  for (auto& [uuid, job] : turn.state.jobs) {
    const auto joined = job.joined.find(node.info.node_id);
    if (!job.description->recruits || joined == job.joined.end()) continue;
    const bool is_named = std::any_of(
        hello.running.begin(), hello.running.end(), [&wanted = uuid](const LocalJob& local) {
          return local.job_uuid == wanted;
        });
    if (!is_named) joined->second.is_forgotten = true;
  }
}

void leave_out(Turn& turn, Job& job, Node& node, const std::string& why) {
  const NodeId& id = node.info.node_id;
  job.declined[id] = why;
  report(turn, ReportKind::kDeclined, uuid_of(job), id, why);
  send(turn,
       node,
       job.generation,
       Notice{uuid_of(job), NoticeKind::kParked, "this node does not take part: " + why});
}

void take_decline(Turn& turn, Job& job, Node& node, const Decline& decline) {
  constexpr std::size_t kMostText = 256;
  job.invited.erase(node.info.node_id);
  if (!find_member(job, node.info.node_id)) job.joined.erase(node.info.node_id);
  job.declined[node.info.node_id] = decline.reason.substr(0, kMostText);
  report(turn, ReportKind::kDeclined, uuid_of(job), node.info.node_id, decline.reason);
  recruit(turn, job);
}

}  // namespace accel::agent
