#include "agent/coordinator/member/member.h"

#include <algorithm>
#include <utility>

namespace accel::agent {
namespace {

void note_generation(LocalMembership& membership, std::uint64_t seen) {
  membership.highest_generation = std::max(membership.highest_generation, seen);
  membership.join.generation = membership.highest_generation;
}

// Whether a generation that is stopped for this costs the job no restart.
bool is_free(StopReason reason) {
  return reason == StopReason::kScale || reason == StopReason::kDrain;
}

// How long the workers may go on without an acked beat.
Duration patience_of(const LocalMembership& membership) {
  if (!membership.job) return Duration::max();
  const FencePolicy& fence = membership.job->fence;
  return fence.fencing == Fencing::kHard ? fence.lease : fence.control_loss_grace;
}

class MemberTurn {
 public:
  MemberTurn(MemberStep& result, const MemberEvent& event)
      : state_(result.state), actions_(result.actions), event_(event), now_(event.at) {}

  void run() {
    if (const auto* adopted = std::get_if<Adopted>(&event_.what)) adopt(*adopted);
    enforce_leases();
    std::visit([this](const auto& what) { on(what); }, event_.what);
  }

 private:
  // ---- sending ----

  AgentMessage message_of(std::uint64_t generation, std::uint64_t seq) const {
    AgentMessage message;
    message.fence = {state_.epoch, generation, state_.session_id, seq};
    message.mono = now_.time_since_epoch();
    return message;
  }

  template <typename Body>
  void say(std::uint64_t generation, Body body) {
    AgentMessage message = message_of(generation, ++state_.last_seq);
    message.body = std::move(body);
    if (state_.unacked.empty()) state_.resend_at = now_ + 2 * state_.beat_every;
    state_.unacked.push_back(message);
    if (state_.is_welcome) actions_.emplace_back(SendUp{std::move(message)});
  }

  // Whether something of this kind about the same generation is on its way already.
  template <typename Body>
  [[nodiscard]] bool is_saying(const JobUuid& uuid, std::uint64_t generation) const {
    return std::any_of(
        state_.unacked.begin(), state_.unacked.end(), [&](const AgentMessage& message) {
          const auto* body = std::get_if<Body>(&message.body);
          return body && body->job_uuid == uuid && message.fence.generation == generation;
        });
  }

  void say_hello() {
    const std::uint64_t acked =
        state_.unacked.empty() ? state_.last_seq : state_.unacked.front().fence.seq - 1;
    AgentMessage message = message_of(0, acked);
    Hello hello;
    hello.build = state_.build;
    hello.node = state_.node;
    for (const auto& [uuid, membership] : state_.jobs) {
      hello.running.push_back(
          {uuid, membership.assigned_epoch, membership.generation, membership.phase});
    }
    message.body = std::move(hello);
    state_.next_beat = now_ + state_.beat_every;
    actions_.emplace_back(SendUp{std::move(message)});
  }

  void begin_hello() {
    state_.is_welcome = false;
    if (!state_.is_connected) return;
    state_.hello_at = now_;
    say_hello();
  }

  void say_beat() {
    AgentMessage message = message_of(0, state_.last_seq);
    Beat beat;
    for (const auto& [uuid, membership] : state_.jobs) {
      const StepsMade& steps = membership.steps;
      beat.jobs.push_back({uuid,
                           membership.generation,
                           membership.phase,
                           steps.min_step,
                           steps.max_step,
                           steps.stalled_ranks,
                           steps.last_progress_age,
                           steps.ranks});
    }
    beat.slots_taken = state_.slots_taken;
    message.body = std::move(beat);
    state_.next_beat = now_ + state_.beat_every;
    actions_.emplace_back(SendUp{std::move(message)});
  }

  void say_again() {
    state_.resend_at = now_ + 2 * state_.beat_every;
    for (AgentMessage& message : state_.unacked) {
      message.fence.leader_epoch = state_.epoch;
      message.mono = now_.time_since_epoch();
      actions_.emplace_back(SendUp{message});
    }
  }

  // ---- workers ----

  void stop_workers(const JobUuid& uuid,
                    LocalMembership& membership,
                    Milliseconds grace,
                    StopReason reason,
                    bool kill) {
    membership.phase = MemberPhase::kDraining;
    membership.stop_grace = grace;
    actions_.emplace_back(StopWorkers{uuid, membership.generation, grace, reason, kill});
  }

  void park(LocalMembership& membership, ParkWorkers order) {
    membership.job = order.assign.job;
    order.lease_until = lease_of(membership);
    membership.assigned_epoch = order.assigned_epoch;
    membership.generation = order.generation;
    membership.num_ranks = order.assign.num_ranks;
    membership.restarts_before = order.assign.restart_count - order.assign.out_of_memory;
    membership.join.restarts = membership.restarts_before;
    membership.join.out_of_memory = order.assign.out_of_memory;
    membership.num_done = 0;
    membership.steps = StepsMade{};
    membership.next.reset();
    membership.phase = MemberPhase::kPreparing;
    actions_.emplace_back(std::move(order));
  }

  // Empty: soft fencing, no lease.
  [[nodiscard]] std::optional<TimePoint> lease_of(const LocalMembership& membership) const {
    if (!membership.job || membership.job->fence.fencing != Fencing::kHard) return std::nullopt;
    return state_.acked_at + membership.job->fence.lease;
  }

  // A beat that was sent at this time is acked.
  void take_ack_of(TimePoint sent) {
    if (sent <= state_.acked_at) return;
    state_.acked_at = sent;
    for (const auto& [uuid, membership] : state_.jobs) {
      const auto until = lease_of(membership);
      if (!until || !is_active(membership.phase)) continue;
      actions_.emplace_back(RenewLease{uuid, membership.generation, *until});
    }
  }

  void enforce_leases() {
    for (auto& [uuid, membership] : state_.jobs) {
      if (!is_active(membership.phase) || membership.phase == MemberPhase::kDraining) continue;
      if (now_ - state_.acked_at < patience_of(membership)) continue;
      membership.next.reset();
      stop_workers(uuid, membership, Milliseconds(0), StopReason::kStale, true);
    }
  }

  void adopt(const Adopted& adopted) {
    LocalMembership& membership = state_.jobs[adopted.local.job_uuid];
    membership.join = adopted.join;
    membership.job = adopted.job;
    membership.assigned_epoch = adopted.local.leader_epoch;
    membership.generation = adopted.local.generation;
    note_generation(membership, adopted.local.generation);
    membership.phase = adopted.local.phase;
    membership.num_ranks = adopted.num_ranks;
    state_.epoch = std::max(state_.epoch, adopted.local.leader_epoch);
    state_.acked_at = std::max(state_.acked_at, adopted.acked_at);
  }

  // ---- what happens here ----

  void on(const MemberTick&) {
    if (!state_.is_connected) return;
    if (!state_.is_welcome) {
      if (now_ >= state_.next_beat) say_hello();
      return;
    }
    if (!state_.unacked.empty() && now_ >= state_.resend_at) say_again();
    if (now_ >= state_.next_beat) say_beat();
  }
  void on(const Connected&) {
    state_.is_connected = true;
    begin_hello();
  }
  void on(const Disconnected&) { state_.is_connected = state_.is_welcome = false; }
  void on(const Adopted&) {}  // done before

  void on(const WantJob& want) {
    LocalMembership& membership = state_.jobs[want.join.job_uuid];
    const Join before = std::exchange(membership.join, want.join);
    membership.join.generation = before.generation;
    membership.join.restarts = before.restarts;
    membership.join.out_of_memory = before.out_of_memory;
    membership.wants_in = true;
    if (membership.phase == MemberPhase::kNone) membership.phase = MemberPhase::kJoined;
    if (state_.is_welcome) say(0, membership.join);
  }

  void on(const DeclineJob& decline) {
    if (!is_saying<Decline>(decline.job_uuid, 0)) {
      say(0, Decline{decline.job_uuid, decline.reason});
    }
  }

  void on(const WantLeave& want) {
    say(0, Leave{want.job_uuid, want.reason});
    for (auto it = state_.jobs.begin(); it != state_.jobs.end();) {
      const bool is_meant = want.job_uuid.empty() || want.job_uuid == it->first;
      if (is_meant) it->second.wants_in = false;
      const bool is_over = is_meant && !is_active(it->second.phase);
      it = is_over ? state_.jobs.erase(it) : std::next(it);
    }
  }

  void on(const WorkersParked& parked) {
    LocalMembership* membership = present(parked.job_uuid, parked.generation);
    if (!membership || membership->phase != MemberPhase::kPreparing) return;
    if (parked.failed_checks.empty()) membership->phase = MemberPhase::kPrepared;
    say(parked.generation,
        Ready{parked.job_uuid, parked.store_endpoint, parked.failed_checks, parked.took});
  }

  void on(const WorkerExited& exited) {
    LocalMembership* membership = present(exited.job_uuid, exited.generation);
    if (!membership || exited.exit.cause == supervisor::ExitCause::kStoppedByUs) return;
    MemberPhase& phase = membership->phase;
    if (exited.exit.cause == supervisor::ExitCause::kOk) {
      // One that was told to stop may save and end well.
      const bool are_all =
          phase != MemberPhase::kDraining && ++membership->num_done >= membership->num_ranks;
      if (are_all && phase == MemberPhase::kRunning) phase = MemberPhase::kDone;
    } else if (is_active(phase) && phase != MemberPhase::kDraining) {
      phase = MemberPhase::kFailed;
    }
    say(exited.generation,
        WorkerEvent{exited.job_uuid,
                    WorkerPhase::kExited,
                    exited.exit.global_rank,
                    exited.exit.local_rank,
                    exited.step,
                    exited.exit});
  }

  // What is not proved is not said: the coordinator waits out its patience and the lease, and goes on without this node.
  void on(const WorkersGone& gone) {
    if (!gone.is_proved) return;
    LocalMembership* membership = present(gone.job_uuid, gone.generation);
    if (!membership || !is_active(membership->phase)) return;
    if (membership->phase == MemberPhase::kDone) return;  // said so; Stop or the job's end follows
    membership->phase = MemberPhase::kStopped;
    say(gone.generation, Stopped{gone.job_uuid, gone.num_unkillable});
    if (membership->next) {
      ParkWorkers next = *std::exchange(membership->next, std::nullopt);
      park(*membership, std::move(next));
    } else if (!membership->wants_in) {
      state_.jobs.erase(gone.job_uuid);
    }
  }

  void on(const StepsMade& steps) {
    LocalMembership* membership = present(steps.job_uuid, steps.generation);
    if (!membership) return;
    membership->steps = steps;
  }

  LocalMembership* present(const JobUuid& uuid, std::uint64_t generation) {
    const auto found = state_.jobs.find(uuid);
    const bool is_present = found != state_.jobs.end() && found->second.generation == generation;
    return is_present ? &found->second : nullptr;
  }

  // ---- what the coordinator says ----

  void on(const FromCoordinator& event) {
    const Fence& fence = event.message.fence;
    if (fence.session_id != state_.session_id || !state_.is_connected) {
      ++state_.dropped;
      return;
    }
    const bool is_too_high = fence.leader_epoch > kHighestEpoch;
    if (fence.leader_epoch < state_.epoch || is_too_high) {
      ++state_.dropped;
      // Someone leads who does not know yet that another one does; or whom to follow would mean to follow nobody else ever.
      if (std::holds_alternative<Welcome>(event.message.body)) {
        actions_.emplace_back(Reconnect{is_too_high ? "no coordinator has leader epoch " +
                                                          std::to_string(fence.leader_epoch)
                                                    : "the coordinator is outdated"});
      }
      return;
    }
    state_.epoch = fence.leader_epoch;
    std::visit([&](const auto& body) { obey(fence, body); }, event.message.body);
  }

  void obey(const Fence&, const Welcome& welcome) {
    if (state_.is_welcome) return;
    state_.is_welcome = true;
    state_.beat_every = welcome.beat_every;
    take_ack_of(state_.hello_at);
    say_again();
    for (const auto& [uuid, membership] : state_.jobs) {
      if (membership.wants_in && !is_saying<Join>(uuid, 0)) say(0, membership.join);
    }
    say_beat();
  }

  void obey(const Fence& fence, const Assign& assign) {
    const auto found = state_.jobs.find(assign.job->job_uuid);
    if (found == state_.jobs.end() || !found->second.wants_in) {
      ++state_.dropped;
      return;
    }
    const JobUuid& uuid = found->first;
    LocalMembership& membership = found->second;
    const auto is_as_new = std::pair(fence.leader_epoch, fence.generation) >=
                           std::pair(membership.assigned_epoch, membership.generation);
    if (fence.generation < membership.highest_generation || !is_as_new) {
      ++state_.dropped;
      return;
    }
    const bool is_repeated = fence.leader_epoch == membership.assigned_epoch &&
                             fence.generation == membership.generation;
    if (is_repeated) return;  // whatever became of it was said, and is said again until acked
    note_generation(membership, fence.generation);
    ParkWorkers order{fence.generation, fence.leader_epoch, assign};
    if (!is_active(membership.phase)) return park(membership, std::move(order));
    membership.next = std::move(order);
    if (membership.phase != MemberPhase::kDraining) {
      stop_workers(uuid, membership, Milliseconds(0), StopReason::kStale, true);
    }
  }

  void obey(const Fence& fence, const Start& start) {
    LocalMembership* membership = present(start.job_uuid, fence.generation);
    const bool is_meant = membership && membership->assigned_epoch == start.assigned_epoch &&
                          membership->phase == MemberPhase::kPrepared;
    if (!is_meant) {
      ++state_.dropped;
      return;
    }
    membership->phase = MemberPhase::kRunning;
    membership->join.restarts = membership->restarts_before + 1;
    actions_.emplace_back(ReleaseWorkers{start.job_uuid, fence.generation, start.store_endpoint});
  }

  void obey(const Fence& fence, const Stop& stop) {
    const auto found = state_.jobs.find(stop.job_uuid);
    if (found == state_.jobs.end()) return say_stopped(stop.job_uuid, fence.generation);
    LocalMembership& membership = found->second;
    if (fence.generation < membership.generation) {
      ++state_.dropped;
      return;
    }
    note_generation(membership, fence.generation);
    if (is_free(stop.reason) && fence.generation == membership.generation)
      membership.join.restarts = membership.restarts_before;
    if (membership.next && membership.next->generation <= fence.generation) {
      membership.next.reset();
    }
    if (!is_active(membership.phase)) return say_stopped(stop.job_uuid, fence.generation);
    const bool is_news = membership.phase != MemberPhase::kDraining || stop.kill ||
                         stop.grace < membership.stop_grace;
    if (is_news) stop_workers(stop.job_uuid, membership, stop.grace, stop.reason, stop.kill);
  }

  void say_stopped(const JobUuid& uuid, std::uint64_t generation) {
    if (!is_saying<Stopped>(uuid, generation)) say(generation, Stopped{uuid});
  }

  void obey(const Fence&, const Notice& notice) {
    actions_.emplace_back(TellJob{notice});
    const auto found = state_.jobs.find(notice.job_uuid);
    if (found == state_.jobs.end() || !ends_job(notice.kind)) return;
    LocalMembership& membership = found->second;
    membership.wants_in = false;
    membership.next.reset();
    if (!is_active(membership.phase)) {
      state_.jobs.erase(found);
    } else if (membership.phase != MemberPhase::kDraining) {
      stop_workers(notice.job_uuid,
                   membership,
                   membership.job ? membership.job->stop.grace : Milliseconds(0),
                   StopReason::kFinished,
                   false);
    }
  }

  void obey(const Fence&, const BeatAck& ack) {
    const TimePoint sent{std::chrono::duration_cast<Duration>(ack.mono_echo)};
    take_ack_of(std::min(sent, now_));
    while (!state_.unacked.empty() && state_.unacked.front().fence.seq <= ack.acked_seq) {
      state_.unacked.pop_front();
    }
  }

  void obey(const Fence&, const Fenced& fenced) {
    if (fenced.reason == FenceReason::kUnknownSession) {
      if (state_.is_welcome) begin_hello();
      return;
    }
    for (auto& [uuid, membership] : state_.jobs) {
      membership.next.reset();
      if (!is_active(membership.phase) || membership.phase == MemberPhase::kDraining) continue;
      stop_workers(uuid, membership, Milliseconds(0), StopReason::kStale, true);
    }
    state_.session_id = event_.fresh_session;
    state_.last_seq = 0;
    state_.unacked.clear();
    state_.is_welcome = false;
    // The first thing that is said of each job: its proof is what the rest of the session is believed by.
    for (const auto& [uuid, membership] : state_.jobs) {
      if (membership.wants_in) say(0, membership.join);
    }
    begin_hello();
  }

  void obey(const Fence&, const Invite& invite) {
    const JobUuid& uuid = invite.job->job_uuid;
    const auto found = state_.jobs.find(uuid);
    if (found == state_.jobs.end() || !found->second.wants_in) {
      actions_.emplace_back(ConsiderJob{invite.job});
    } else if (!is_saying<Join>(uuid, 0)) {
      say(0, found->second.join);  // it was heard, and forgotten by who leads now
    }
  }

  void obey(const Fence&, const Quarantine& quarantine) {
    actions_.emplace_back(TellQuarantine{quarantine});
  }

  void obey(const Fence&, const Refused& refused) {
    actions_.emplace_back(Reconnect{refused.message});
  }

  MemberState& state_;
  std::vector<MemberAction>& actions_;
  const MemberEvent& event_;
  TimePoint now_;
};

}  // namespace

MemberStep step(MemberState state, const MemberEvent& event) {
  MemberStep result{std::move(state), {}};
  MemberTurn(result, event).run();
  return result;
}

TimePoint next_wake(const MemberState& state) {
  TimePoint next = TimePoint::max();
  for (const auto& [uuid, membership] : state.jobs) {
    if (!is_active(membership.phase) || membership.phase == MemberPhase::kDraining) continue;
    const Duration patience = patience_of(membership);
    if (patience != Duration::max()) next = std::min(next, state.acked_at + patience);
  }
  if (!state.is_connected) return next;
  next = std::min(next, state.next_beat);
  if (state.is_welcome && !state.unacked.empty()) next = std::min(next, state.resend_at);
  return next;
}

}  // namespace accel::agent
