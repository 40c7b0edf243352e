// Turn: one call of step() while it is under way, and the parts of the step function.
//
// Private to the coordinator. Each part changes the state and appends actions; the files follow the
// events: sessions.cc (who speaks), nodes.cc (who is alive), recruiting.cc (who is asked),
// gathering.cc, preparing.cc, running.cc, stopping.cc (a job's phases), requests.cc (Control),
// durable.cc (what is written down).
#pragma once

#include <string>
#include <utility>

#include "agent/coordinator/messages/actions.h"
#include "agent/coordinator/state/state.h"

namespace accel::agent {

struct Turn {
  State& state;
  Actions& actions;
  TimePoint now;
  double chance = 0;
  bool frees_slots = false;  // jobs that wait for room look again at the end of the turn
};

// ---- sessions.cc ----
void receive(Turn& turn, const FromAgent& event);
void lose_connection(Turn& turn, ConnectionId connection);

// Sends to where the node is connected; nothing when it is not.
template <typename Body>
void send(Turn& turn, Node& node, std::uint64_t generation, Body body) {
  Session& session = node.session;
  if (!session.is_connected) return;
  CoordinatorMessage message{{turn.state.epoch, generation, session.id, ++session.sent_seq},
                             std::move(body)};
  turn.actions.emplace_back(Send{session.connection, std::move(message)});
}

// ---- nodes.cc ----
void watch_nodes(Turn& turn);
// When watch_nodes() may have something to do about it.
[[nodiscard]] TimePoint next_change(const State& state, const Node& node);
// It did not answer, or must not go on: its session is void, its jobs go on without it.
void lose_node(Turn& turn, Node& node, const std::string& why);
void quarantine(Turn& turn, Node& node, const std::string& reason);
[[nodiscard]] bool is_quarantined(const Node& node, TimePoint now);
// May get a seat now.
[[nodiscard]] bool is_eligible(const State& state, const NodeId& id, TimePoint now);
[[nodiscard]] Node* find_node(State& state, const NodeId& id);
void report(Turn& turn, ReportKind kind, const JobUuid& job, const NodeId& node, std::string text);

// ---- job phases ----
void enter(Turn& turn, Job& job, JobPhase phase, std::string text);
[[nodiscard]] Job* find_job(State& state, const JobUuid& uuid);
[[nodiscard]] Member* find_member(Job& job, const NodeId& id);
[[nodiscard]] const JobUuid& uuid_of(const Job& job);

// recruiting.cc: jobs that came by Control
// Invites as many nodes as are missing.
void recruit(Turn& turn, Job& job);
// A node has said Hello: the jobs that lack one ask it.
void recruit_node(Turn& turn, Node& node);
// A new session began: what its agent does not name any more it has to be asked for again.
void forget_joined(Turn& turn, Node& node, const Hello& hello);
void take_decline(Turn& turn, Job& job, Node& node, const Decline& decline);
// No seat in this job any more. What a job's own parts do or leave undone says nothing about the node for others: their
// users wrote the checks and the limits, and may stop or replace the shim.
void leave_out(Turn& turn, Job& job, Node& node, const std::string& why);
// Whether the node has as many free slots as the job needs there. Always, for a job that does not
// recruit: its nodes know what they offer.
[[nodiscard]] bool has_room(const State& state, const Job& job, const Node& node);

// gathering.cc: kGathering, kSuspended
void begin_gathering(Turn& turn, Job& job, const std::string& text);
// Whether enough nodes that are known, or may come by themselves, are not left out of the job.
[[nodiscard]] bool can_be_formed(const Turn& turn, const Job& job);
void add_joined(Turn& turn, Job& job, Node& node, const Join& join);
void tick_gathering(Turn& turn, Job& job);

// preparing.cc
void prepare(Turn& turn, Job& job, std::vector<struct Seat> seats);
void send_assign(Turn& turn, Job& job, Member& member);
void take_ready(Turn& turn, Job& job, Node& node, const Ready& ready);
void commit(Turn& turn, Job& job);
void take_committed(Turn& turn, Job& job, bool ok);
void tick_preparing(Turn& turn, Job& job);

// running.cc
void start_all(Turn& turn, Job& job);
void send_start(Turn& turn, Job& job, Member& member);
void take_worker_event(Turn& turn, Job& job, Node& node, const WorkerEvent& event);
void take_progress(Turn& turn, Job& job, Member& member, const JobBeat& beat);
void mark_done(Turn& turn, Job& job, Member& member);
void tick_running(Turn& turn, Job& job);

// observing.cc: what a node says of itself, against what it was told
void observe(Turn& turn, Node& node, const std::vector<JobBeat>& jobs);
void take_inventory(Turn& turn, Node& node, const Hello& hello, bool is_same_boot);
// A number that was used, if only by a coordinator before this one that left no record of it, is not used again: messages
// about that generation may still be under way. A node that is far ahead of everybody is not believed.
void note_generation(Job& job, std::uint64_t seen);

// stopping.cc
inline constexpr const char* kStoppedOnRequest = "stopped on request";
void begin_stopping(Turn& turn, Job& job, StopPlan plan);
void send_stop(Turn& turn, Job& job, Member& member);
void mark_stopped(Turn& turn, Job& job, Member& member);
// The member's node is lost: no seat any more.
void mark_gone(Turn& turn, Job& job, Member& member, TimePoint heard_at);
// The node is about to hear from us, and its lease runs anew: also in jobs that count it as gone, because another agent
// process came back to the workers of the one that was lost.
void renew_leases(Turn& turn, const Node& node);
void fail_job(Turn& turn, Job& job, Failure failure);
void tick_stopping(Turn& turn, Job& job);
// How long a live agent may take to say Stopped.
// The job's, or what is left of it where its allocation ends.
[[nodiscard]] Milliseconds stop_grace(const Job& job);
[[nodiscard]] Duration stop_patience(const Job& job);
// Ends the job, once that is durable; `phase` is terminal.
void finish(Turn& turn, Job& job, JobPhase phase, std::string text);
void take_ended(Turn& turn, Job& job, bool ok);
void tick_ending(Turn& turn, Job& job);

// requests.cc
void start_job(Turn& turn, const StartJob& request);
void stop_job(Turn& turn, const StopJob& request);
void take_stop_written(Turn& turn, const StopJob& request, bool ok);
void scale_job(Turn& turn, const ScaleJob& request);
void drain_node(Turn& turn, const DrainNode& request);
void undrain_node(Turn& turn, const UndrainNode& request);
void confirm_down(Turn& turn, const NodeDown& request);
void leave(Turn& turn, Node& node, const Leave& leave);

// durable.cc
inline constexpr const char* kWriteRemedy =
    "see the coordinator's log for the cause; make room on the disk of its journal, or in etcd, "
    "and ask again";
enum class Sync { kNo, kYes };
// Returns the ticket.
std::uint64_t persist_job(Turn& turn, const Job& job, Sync sync);
void persist_node(Turn& turn, const Node& node);
void persist_epoch(Turn& turn);
void forget_job(Turn& turn, const JobUuid& uuid);
void take_persisted(Turn& turn, const Persisted& answer);

}  // namespace accel::agent
