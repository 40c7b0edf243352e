// The fingerprint of a cluster: equal for two that will behave alike.
//
// Times go in as what is left or what is past, and only where somebody will look at them; counters
// that nobody compares (connection numbers, sequence numbers towards agents, drop counts, the ledger)
// stay out.

#include <string>

#include <xxhash.h>

#include "tests/support/virtual_cluster.h"

namespace accel::agent::test {
namespace {

class Digest {
 public:
  explicit Digest(TimePoint now) : now_(now) {}

  template <typename T>
  requires(std::is_integral_v<T> || std::is_enum_v<T>) void add(T value) {
    const auto number = static_cast<std::int64_t>(value);
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  void add(const std::string& text) {
    add(text.size());
    bytes_ += text;
  }
  // A moment that matters only while it lies ahead.
  void add_ahead(TimePoint at) { add(at > now_ ? (at - now_).count() : 0); }
  // A moment in the past that counts towards something.
  void add_past(TimePoint at) { add((now_ - at).count()); }

  void add(const Fence& fence) {
    add(fence.leader_epoch);
    add(fence.generation);
    add(fence.session_id);
    add(fence.seq);
  }
  void add(const AgentMessage& message) {
    add(message.fence);
    add(message.body.index());
    add((now_.time_since_epoch() - message.mono).count());
    if (const auto* beat = std::get_if<Beat>(&message.body)) {
      for (const JobBeat& job : beat->jobs) {
        add(job.generation);
        add(job.phase);
      }
    } else if (const auto* event = std::get_if<WorkerEvent>(&message.body)) {
      add(event->global_rank);
      add(event->exit ? event->exit->cause : supervisor::ExitCause::kOk);
    } else if (const auto* hello = std::get_if<Hello>(&message.body)) {
      add(hello->node.boot_id);
      for (const LocalJob& job : hello->running) {
        add(job.generation);
        add(job.phase);
      }
    }
  }
  void add(const CoordinatorMessage& message) {
    add(message.fence.leader_epoch);
    add(message.fence.generation);
    add(message.fence.session_id);
    add(message.body.index());
    if (const auto* ack = std::get_if<BeatAck>(&message.body)) {
      add(ack->acked_seq);
      add((now_.time_since_epoch() - ack->mono_echo).count());
    } else if (const auto* assign = std::get_if<Assign>(&message.body)) {
      add(assign->node_index);
      add(assign->num_nodes);
    } else if (const auto* start = std::get_if<Start>(&message.body)) {
      add(start->assigned_epoch);
    } else if (const auto* stop = std::get_if<Stop>(&message.body)) {
      add(stop->kill);
    } else if (const auto* notice = std::get_if<Notice>(&message.body)) {
      add(notice->kind);
    } else if (const auto* fenced = std::get_if<Fenced>(&message.body)) {
      add(fenced->reason);
    }
  }

  void add(const Job& job) {
    add(job.phase);
    add(job.generation);
    add(job.generation_floor);
    add(job.assigned_epoch);
    for (const Member& member : job.members) {
      add(member.node_id);
      add(member.phase);
      add(member.is_gone);
      add(member.finished_ranks.size());
      if (member.is_gone) add_ahead(member.lease_over);
      add_ahead(member.sent_at + Milliseconds(1'000));
    }
    for (const auto& [id, joined] : job.joined) {
      add(id);
      add(joined.previous_index);
      add(joined.order);
    }
    add(job.commit_ticket.has_value());
    add(job.ending ? job.ending->phase : JobPhase::kPending);
    add(job.ending && job.ending->ticket);
    add(job.was_started);
    add(job.history.restarts);
    add(job.history.out_of_memory);
    add(job.history.quick_failures);
    add(job.crashes.count);
    add_ahead(job.gather_not_before);
    const bool is_waiting = job.phase == JobPhase::kGathering ||
                            job.phase == JobPhase::kPreparing || job.phase == JobPhase::kSuspended;
    if (is_waiting) add_past(job.phase_since);
    if (job.phase == JobPhase::kGathering && job.min_since) add_past(*job.min_since);
    if (job.phase == JobPhase::kStopping) {
      add_past(job.stop.since);
      add(job.stop.reason);
      add(job.stop.was_started);
      add(job.stop.failure ? static_cast<int>(job.stop.failure->kind) : -1);
    }
  }

  void add(const Node& node) {
    add(node.info.node_id);
    add(node.info.boot_id);
    add(node.liveness);
    add(node.session.id);
    add(node.session.is_connected);
    add(node.session.acked_seq);
    add(node.losses.size());
    add(node.slots_taken);
    add(node.busy.size());
    add_ahead(node.quarantine.until);
    if (node.liveness == Liveness::kLost) return;
    add_past(node.session.heard_at);
    add_ahead(node.lost_not_before);
    if (!node.session.is_connected) add_past(node.session.connection_lost_at);
  }

  void add(const MemberState& member) {
    add(member.session_id);
    add(member.epoch);
    add(member.is_connected);
    add(member.is_welcome);
    add(member.last_seq);
    add(member.unacked.size());
    add_ahead(member.next_beat);
    if (!member.unacked.empty()) add_ahead(member.resend_at);
    for (const auto& [uuid, membership] : member.jobs) {
      add(membership.generation);
      add(membership.assigned_epoch);
      add(membership.phase);
      add(membership.highest_generation);
      add(membership.next ? membership.next->generation : 0);
      add(membership.num_done);
      if (membership.phase >= MemberPhase::kPreparing) add_past(member.acked_at);
    }
  }

  [[nodiscard]] std::uint64_t finish() const { return XXH3_64bits(bytes_.data(), bytes_.size()); }

 private:
  TimePoint now_;
  std::string bytes_;
};

}  // namespace

std::uint64_t VirtualCluster::fingerprint() const {
  Digest digest(now_);
  digest.add(is_coordinator_up_);
  if (is_coordinator_up_) {
    digest.add(state_.epoch);
    digest.add(state_.is_outdated);
    digest.add(state_.journal_full);
    digest.add(state_.stops.size());
    for (const auto& [id, node] : state_.nodes) digest.add(node);
    for (const auto& [uuid, job] : state_.jobs) digest.add(job);
  }
  for (const Write& write : disk_) digest.add(write.record.key);
  for (const auto& [key, value] : durable_) {
    digest.add(key);
    // Everything but the account of the time, which closes the text.
    digest.add(value.size());
  }
  for (const VirtualNode& node : nodes_) {
    digest.add(node.is_up);
    digest.add(node.is_agent_up);
    digest.add(node.is_paused);
    digest.add(node.is_cut);
    digest.add(node.connection != 0);
    digest.add(node.member);
    digest.add(node.workers.generation);
    digest.add(node.workers.phase);
    if (node.workers.phase == Workers::Phase::kRunning) digest.add_ahead(node.workers.ends_at);
    if (node.workers.lease_until) digest.add_ahead(*node.workers.lease_until);
    for (const VirtualNode::Up& up : node.up) {
      digest.add(up.index());
      if (const auto* message = std::get_if<FromAgent>(&up)) {
        digest.add(message->connection == node.connection);
        digest.add(message->message);
      }
    }
    for (const auto& [connection, message] : node.down) {
      digest.add(connection == node.connection);
      digest.add(message);
    }
    for (const auto& local : node.local) digest.add(local.index());
  }
  return digest.finish();
}

}  // namespace accel::agent::test
