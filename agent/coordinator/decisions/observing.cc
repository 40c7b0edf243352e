// What a node says of itself, compared with what it was told: whoever stands behind is told again.
//
// So a lost Assign, Start or Stop costs one beat, and an agent that came back with less than it had
// (or more) is found out. See messages.h, "Delivery".

#include <algorithm>

#include "agent/coordinator/decisions/turn.h"

namespace accel::agent {
namespace {

bool has_seats(const Job& job) {
  return job.phase == JobPhase::kPreparing || job.phase == JobPhase::kRunning ||
         job.phase == JobPhase::kStopping;
}

NoticeKind end_of(const Job& job) {
  if (job.phase == JobPhase::kSucceeded) return NoticeKind::kSucceeded;
  return job.phase == JobPhase::kFailed ? NoticeKind::kFailed : NoticeKind::kCancelled;
}

class Observer {
 public:
  Observer(Turn& turn, Node& node) : turn_(turn), node_(node) {}

  void look_at(const JobBeat& beat) {
    Job* job = find_job(turn_.state, beat.job_uuid);
    if (job && job->ending) return;
    if (!job || is_terminal(job->phase)) return look_at_ended(job, beat);
    note_generation(*job, beat.generation);
    Member* member = has_seats(*job) ? find_member(*job, node_.info.node_id) : nullptr;
    if (member && member->is_gone) member = nullptr;
    const bool is_present = member && beat.generation == job->generation;
    if (is_active(beat.phase) && !is_present) {
      node_.busy[beat.job_uuid] = beat.generation;
      return send(turn_,
                  node_,
                  beat.generation,
                  Stop{beat.job_uuid, Milliseconds(0), StopReason::kStale, true});
    }
    node_.busy.erase(beat.job_uuid);
    if (!member) return;
    if (!is_present || !is_active(beat.phase)) return look_at_missing(*job, *member);
    look_at_present(*job, *member, beat);
  }

 private:
  void look_at_ended(Job* job, const JobBeat& beat) {
    if (job && beat.phase != MemberPhase::kNone) {
      send(turn_, node_, beat.generation, Notice{beat.job_uuid, end_of(*job), job->text});
    } else if (!job && is_active(beat.phase)) {
      send(turn_,
           node_,
           beat.generation,
           Stop{beat.job_uuid, Milliseconds(0), StopReason::kStale, true});
    }
  }

  // It has a seat, but nothing of the generation.
  void look_at_missing(Job& job, Member& member) {
    switch (job.phase) {
      case JobPhase::kPreparing:
        if (has_forgotten(job)) return lose_part(job, "began anew and knows nothing of its part");
        if (member.phase == MemberPhase::kPreparing) {
          if (is_due(member)) send_assign(turn_, job, member);
          return;
        }
        [[fallthrough]];  // it had been ready
      case JobPhase::kRunning:
        if (member.phase == MemberPhase::kDone) return;
        return lose_part(job, "has nothing left of its part");
      case JobPhase::kStopping:
        if (member.phase != MemberPhase::kStopped && is_due(member)) send_stop(turn_, job, member);
        return;
      default:
        return;
    }
  }

  void look_at_present(Job& job, Member& member, const JobBeat& beat) {
    if (job.phase == JobPhase::kStopping) {
      const bool is_behind =
          beat.phase != MemberPhase::kDraining && member.phase != MemberPhase::kStopped;
      if (is_behind && is_due(member)) send_stop(turn_, job, member);
      return;
    }
    const bool failed = beat.phase == MemberPhase::kFailed || beat.phase == MemberPhase::kDraining;
    if (failed) return lose_part(job, "stopped its part without saying why");
    if (job.phase != JobPhase::kRunning) return;
    take_progress(turn_, job, member, beat);
    if (beat.phase == MemberPhase::kDone) return mark_done(turn_, job, member);
    if (beat.phase == MemberPhase::kPrepared && is_due(member)) send_start(turn_, job, member);
  }

  [[nodiscard]] bool has_forgotten(const Job& job) const {
    const auto joined = job.joined.find(node_.info.node_id);
    return joined != job.joined.end() && joined->second.is_forgotten;
  }

  void lose_part(Job& job, const std::string& what) {
    fail_job(turn_,
             job,
             {FailureKind::kNodeLost,
              turn_.now,
              node_.info.node_id,
              -1,
              -1,
              supervisor::ExitCause::kLost,
              0,
              node_.info.hostname + ' ' + what});
  }

  // Not so often that a message on its way is repeated at each beat.
  [[nodiscard]] bool is_due(const Member& member) const {
    return turn_.now >= member.sent_at + turn_.state.config.resend_after;
  }

  Turn& turn_;
  Node& node_;
};

}  // namespace

void note_generation(Job& job, std::uint64_t seen) {
  constexpr std::uint64_t kMostAhead = 1'000'000;
  if (seen <= job.generation + kMostAhead)
    job.generation_floor = std::max(job.generation_floor, seen);
}

void observe(Turn& turn, Node& node, const std::vector<JobBeat>& jobs) {
  Observer observer(turn, node);
  for (const JobBeat& beat : jobs) observer.look_at(beat);
  for (const auto& [uuid, job] : turn.state.jobs) {
    if (!has_seats(job) || job.seat_of.count(node.info.node_id) == 0) continue;
    const bool is_named =
        std::any_of(jobs.begin(), jobs.end(), [&wanted = uuid](const JobBeat& beat) {
          return beat.job_uuid == wanted;
        });
    if (!is_named) observer.look_at({uuid});
  }
}

void take_inventory(Turn& turn, Node& node, const Hello& hello, bool is_same_boot) {
  node.busy.clear();
  for (const LocalJob& local : hello.running) {
    if (is_active(local.phase)) node.busy[local.job_uuid] = local.generation;
    if (Job* job = find_job(turn.state, local.job_uuid)) note_generation(*job, local.generation);
  }
  if (!is_same_boot) return;
  // The very machine says that nothing is left: no need to wait for a lease.
  for (auto& [uuid, job] : turn.state.jobs) {
    if (job.phase != JobPhase::kStopping || node.busy.count(uuid)) continue;
    Member* member = find_member(job, node.info.node_id);
    if (member && member->is_gone) mark_stopped(turn, job, *member);
  }
}

}  // namespace accel::agent
