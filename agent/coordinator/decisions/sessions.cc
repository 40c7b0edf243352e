// Who may speak, and in which order it is heard.
//
// A connection begins with Hello; until then, and once its session is void, it is told Fenced. In a
// session the numbered messages are taken strictly in order: the next one is taken, an older one is a
// repetition, a later one comes before something that was lost and is dropped too, because the agent
// sends everything again that is not acked. Beats are not numbered; a beat that was sent before
// something already taken tells of the past and counts only as a sign of life.

#include <algorithm>
#include <type_traits>

#include "agent/coordinator/decisions/turn.h"
#include "runtime/hostlist.h"

namespace accel::agent {
namespace {

// To a connection that has no session.
template <typename Body>
void answer(Turn& turn, ConnectionId connection, const SessionId& session, Body body) {
  turn.actions.emplace_back(Send{connection, {{turn.state.epoch, 0, session, 0}, std::move(body)}});
}

void refuse(Turn& turn, const FromAgent& event, RefusalCode code, const std::string& message) {
  answer(turn, event.connection, event.message.fence.session_id, Refused{code, message});
  turn.actions.emplace_back(CloseConnection{event.connection});
}

std::string range_text(std::uint32_t low, std::uint32_t high) {
  return low == high ? std::to_string(low) : std::to_string(low) + ".." + std::to_string(high);
}

bool is_refused(Turn& turn, const FromAgent& event, const Hello& hello) {
  if (hello.protocol_max < kProtocolMin || hello.protocol_min > kProtocolMax) {
    refuse(turn,
           event,
           RefusalCode::kFailedPrecondition,
           "no common protocol version: agent " + hello.build + " speaks " +
               range_text(hello.protocol_min, hello.protocol_max) + ", this coordinator " +
               range_text(kProtocolMin, kProtocolMax));
    return true;
  }
  if (!is_host_name(hello.node.node_id) || !is_host_name(hello.node.hostname)) {
    refuse(turn,
           event,
           RefusalCode::kFailedPrecondition,
           "node id and host name must be 1 to 255 letters, digits, '.', '_' or '-'");
    return true;
  }
  const Node* node = find_node(turn.state, hello.node.node_id);
  const bool is_other_machine = node && node->session.is_connected &&
                                node->liveness != Liveness::kLost &&
                                node->session.id != event.message.fence.session_id &&
                                node->info.boot_id != hello.node.boot_id;
  if (is_other_machine) {
    refuse(turn,
           event,
           RefusalCode::kAlreadyExists,
           "a live node has the id '" + hello.node.node_id + "' already, at " +
               node->info.hostname + " with another boot id");
    return true;
  }
  return false;
}

void forget_connection(Turn& turn, Node& node) {
  turn.state.connections.erase(node.session.connection);
  node.session.is_connected = false;
}

// The agent process before this one: whoever still holds that session is told so.
void replace_session(Turn& turn, Node& node) {
  if (node.session.is_connected) {
    answer(turn, node.session.connection, node.session.id, Fenced{FenceReason::kReplaced});
    turn.actions.emplace_back(CloseConnection{node.session.connection});
    forget_connection(turn, node);
  }
  turn.state.sessions.erase(node.session.id);
  node.session = Session{};
}

void greet(Turn& turn, Node& node, const Hello& hello) {
  const std::uint32_t protocol = std::min(kProtocolMax, hello.protocol_max);
  send(turn, node, 0, Welcome{protocol, turn.state.config.beat_every});
}

void take_hello(Turn& turn, const FromAgent& event, const Hello& hello) {
  const Fence& fence = event.message.fence;
  if (is_refused(turn, event, hello)) return;
  Node& node = turn.state.nodes[hello.node.node_id];
  const bool is_same_session = node.session.id == fence.session_id;
  if (is_same_session && node.liveness == Liveness::kLost) {
    ++turn.state.dropped.lost_session;
    answer(turn, event.connection, fence.session_id, Fenced{FenceReason::kDeclaredLost});
    return;
  }
  if (is_same_session && node.session.is_connected && node.session.connection == event.connection) {
    ++turn.state.dropped.repeated;
    greet(turn, node, hello);
    return;
  }
  const bool is_same_boot = node.info.boot_id == hello.node.boot_id;
  const bool was_away = node.liveness != Liveness::kLive || !node.session.id.empty();
  if (!is_same_session) {
    replace_session(turn, node);
    node.session.id = fence.session_id;
    node.session.acked_seq = fence.seq;
  } else if (node.session.is_connected) {
    turn.actions.emplace_back(CloseConnection{node.session.connection});
    forget_connection(turn, node);
  }
  node.info = hello.node;
  node.has_left = false;
  node.session.connection = event.connection;
  node.session.is_connected = true;
  node.session.heard_at = turn.now;
  turn.state.connections[event.connection] = fence.session_id;
  turn.state.sessions[fence.session_id] = node.info.node_id;
  if (was_away && node.liveness != Liveness::kLive) {
    report(turn, ReportKind::kNodeBack, "", node.info.node_id, "connected");
  }
  node.liveness = Liveness::kLive;
  greet(turn, node, hello);
  if (is_quarantined(node, turn.now)) {
    const auto left = std::chrono::ceil<Milliseconds>(node.quarantine.until - turn.now);
    send(turn, node, 0, Quarantine{left, node.quarantine.reason});
  }
  take_inventory(turn, node, hello, is_same_boot);
  renew_leases(turn, node);
  if (!is_same_session) forget_joined(turn, node, hello);
  recruit_node(turn, node);
}

// The node whose session may speak on this connection; tells the others why not.
Node* speaker(Turn& turn, const FromAgent& event) {
  const Fence& fence = event.message.fence;
  const auto fenced = [&](std::uint64_t& count, FenceReason reason) {
    ++count;
    answer(turn, event.connection, fence.session_id, Fenced{reason});
    return nullptr;
  };
  const auto session = turn.state.sessions.find(fence.session_id);
  if (session == turn.state.sessions.end()) {
    return fenced(turn.state.dropped.unknown_session, FenceReason::kUnknownSession);
  }
  Node* node = find_node(turn.state, session->second);
  if (!node || node->session.id != fence.session_id) {
    return fenced(turn.state.dropped.lost_session, FenceReason::kReplaced);
  }
  if (node->liveness == Liveness::kLost) {
    return fenced(turn.state.dropped.lost_session, FenceReason::kDeclaredLost);
  }
  if (!node->session.is_connected || node->session.connection != event.connection) {
    return fenced(turn.state.dropped.unknown_session, FenceReason::kUnknownSession);
  }
  return node;
}

void measure_clock(Turn& turn, Node& node, std::chrono::nanoseconds mono) {
  const auto offset = turn.now.time_since_epoch() - mono;
  auto& least = node.session.clock_offset;
  if (!least || offset < *least) least = offset;
}

void take_beat(Turn& turn, Node& node, const AgentMessage& message, const Beat& beat) {
  Session& session = node.session;
  if (message.mono <= session.last_mono) {
    ++turn.state.dropped.old_beat;
    return;
  }
  session.last_mono = message.mono;
  session.heard_at = turn.now;
  measure_clock(turn, node, message.mono);
  if (node.liveness == Liveness::kSuspect) {
    node.liveness = Liveness::kLive;
    report(turn, ReportKind::kNodeBack, "", node.info.node_id, "beats again");
  }
  send(turn, node, 0, BeatAck{message.mono, session.acked_seq});
  if (beat.slots_taken < node.slots_taken) turn.frees_slots = true;
  node.slots_taken = beat.slots_taken;
  renew_leases(turn, node);
  // Sent before something already taken, or after something not yet taken: not the whole truth.
  if (message.fence.seq == session.acked_seq) observe(turn, node, beat.jobs);
}

void take_stopped(Turn& turn, Job& job, Node& node, const Stopped& stopped) {
  Member* member = find_member(job, node.info.node_id);
  if (stopped.num_unkillable > 0) {
    quarantine(
        turn, node, std::to_string(stopped.num_unkillable) + " workers do not end after SIGKILL");
  }
  const bool is_done = member && member->phase == MemberPhase::kDone;
  if (!member || (is_done && job.phase == JobPhase::kRunning)) return;
  if (job.phase == JobPhase::kPreparing || job.phase == JobPhase::kRunning) {
    fail_job(turn,
             job,
             {FailureKind::kNodeLost,
              turn.now,
              node.info.node_id,
              -1,
              -1,
              supervisor::ExitCause::kLost,
              0,
              node.info.hostname + " has nothing left of its part"});
    member = find_member(job, node.info.node_id);
  }
  if (member) mark_stopped(turn, job, *member);
}

void take_alarm(Turn& turn, Node& node, const NodeAlarm& alarm) {
  quarantine(turn, node, alarm.text);
  Job* job = find_job(turn.state, alarm.job_uuid);
  Member* member = job ? find_member(*job, node.info.node_id) : nullptr;
  if (!member || is_over(*job)) return;
  if (alarm.kind == AlarmKind::kDeviceLost && job->phase == JobPhase::kRunning) {
    fail_job(turn,
             *job,
             {FailureKind::kPreflight,
              turn.now,
              node.info.node_id,
              -1,
              -1,
              supervisor::ExitCause::kLost,
              0,
              node.info.hostname + ": " + alarm.text});
  }
}

// Messages about a job, from a session in order.
struct JobMessage {
  Turn& turn;
  Node& node;
  std::uint64_t generation;

  Job* present(const JobUuid& uuid) {
    Job* job = find_job(turn.state, uuid);
    if (!job || is_over(*job)) return nullptr;
    if (generation < job->generation) {
      ++turn.state.dropped.lower_generation;
      return nullptr;
    }
    return generation == job->generation ? job : nullptr;
  }

  void operator()(const Join& join) {
    Job* job = find_job(turn.state, join.job_uuid);
    if (!job) {
      send(turn, node, 0, Notice{join.job_uuid, NoticeKind::kFailed, "no such job"});
    } else if (!is_terminal(job->phase)) {
      add_joined(turn, *job, node, join);
    }
  }
  void operator()(const Ready& ready) {
    if (Job* job = present(ready.job_uuid)) take_ready(turn, *job, node, ready);
  }
  void operator()(const WorkerEvent& event) {
    if (Job* job = present(event.job_uuid)) take_worker_event(turn, *job, node, event);
  }
  void operator()(const Stopped& stopped) {
    const auto busy = node.busy.find(stopped.job_uuid);
    if (busy != node.busy.end() && busy->second <= generation) node.busy.erase(busy);
    if (Job* job = present(stopped.job_uuid)) take_stopped(turn, *job, node, stopped);
  }
  void operator()(const Leave& message) { leave(turn, node, message); }
  void operator()(const Decline& decline) {
    Job* job = find_job(turn.state, decline.job_uuid);
    if (job && !is_over(*job)) take_decline(turn, *job, node, decline);
  }
  void operator()(const NodeAlarm& alarm) { take_alarm(turn, node, alarm); }
  void operator()(const Hello&) {}
  void operator()(const Beat&) {}
};

}  // namespace

void receive(Turn& turn, const FromAgent& event) {
  const AgentMessage& message = event.message;
  if (message.fence.leader_epoch > kHighestEpoch) {
    return refuse(turn,
                  event,
                  RefusalCode::kFailedPrecondition,
                  "no coordinator has leader epoch " + std::to_string(message.fence.leader_epoch) +
                      ": the highest is " + std::to_string(kHighestEpoch));
  }
  if (message.fence.leader_epoch > turn.state.epoch) {
    turn.state.is_outdated = true;
    report(turn,
           ReportKind::kOutdated,
           "",
           "",
           "an agent follows leader epoch " + std::to_string(message.fence.leader_epoch) +
               ", this is " + std::to_string(turn.state.epoch));
    return;
  }
  if (const auto* hello = std::get_if<Hello>(&message.body)) return take_hello(turn, event, *hello);
  Node* node = speaker(turn, event);
  if (!node) return;
  if (message.fence.leader_epoch < turn.state.epoch) {
    ++turn.state.dropped.lower_epoch;
    return;
  }
  if (const auto* beat = std::get_if<Beat>(&message.body)) {
    return take_beat(turn, *node, message, *beat);
  }
  Session& session = node->session;
  if (message.fence.seq != session.acked_seq + 1) {
    ++(message.fence.seq <= session.acked_seq ? turn.state.dropped.repeated
                                              : turn.state.dropped.early);
    return;
  }
  ++session.acked_seq;
  std::visit(JobMessage{turn, *node, message.fence.generation}, message.body);
}

void lose_connection(Turn& turn, ConnectionId connection) {
  const auto session = turn.state.connections.find(connection);
  if (session == turn.state.connections.end()) return;
  const auto id = turn.state.sessions.find(session->second);
  turn.state.connections.erase(session);
  if (id == turn.state.sessions.end()) return;
  Node* node = find_node(turn.state, id->second);
  if (!node || node->session.connection != connection || !node->session.is_connected) return;
  node->session.is_connected = false;
  node->session.connection_lost_at = turn.now;
  if (node->liveness == Liveness::kLive) {
    node->liveness = Liveness::kSuspect;
    report(turn, ReportKind::kNodeSuspect, "", node->info.node_id, "its connection broke");
  }
}

}  // namespace accel::agent
