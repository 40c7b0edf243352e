#include "agent/rendezvous/wire.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "agent/rendezvous/job_specs.h"
#include "agent/rendezvous/job_wire.h"
#include "agent/rendezvous/wire_values.h"
#include "agent/shims/worker_end.h"
#include "runtime/printable.h"

namespace accel::agent {
namespace {

using std::chrono::nanoseconds;

constexpr std::size_t kMostAddresses = 16;
constexpr std::size_t kMostEndpoint = 64;

// Enumerations of the protocol are those of the domain, one further: 0 is UNSPECIFIED there.
template <typename Out, typename In>
Out shifted_up(In value) {
  return static_cast<Out>(static_cast<int>(value) + 1);
}
template <typename Out, typename In>
Out shifted_down(In value, Out last) {
  const int number = static_cast<int>(value) - 1;
  return number < 0 || number > static_cast<int>(last) ? Out{} : static_cast<Out>(number);
}

v1::MemberPhase phase_to(MemberPhase phase) {
  return static_cast<v1::MemberPhase>(static_cast<int>(phase));
}
MemberPhase phase_from(v1::MemberPhase phase) {
  const int number = static_cast<int>(phase);
  return number < 0 || number > static_cast<int>(MemberPhase::kStopped)
             ? MemberPhase::kNone
             : static_cast<MemberPhase>(number);
}

void put(v1::Fence& out, const Fence& fence) {
  out.set_leader_epoch(fence.leader_epoch);
  out.set_generation(fence.generation);
  out.set_session_id(fence.session_id);
  out.set_seq(fence.seq);
}

Fence fence_from(const v1::Fence& fence) {
  return {fence.leader_epoch(), fence.generation(), fence.session_id(), fence.seq()};
}

// ---- agent -> coordinator ----

void put_body(v1::AgentMsg& out, const Hello& hello) {
  v1::Hello& to = *out.mutable_hello();
  to.mutable_v()->set_proto_min(hello.protocol_min);
  to.mutable_v()->set_proto_max(hello.protocol_max);
  to.mutable_v()->set_build(hello.build);
  v1::NodeInfo& node = *to.mutable_node();
  node.set_node_id(hello.node.node_id);
  node.set_boot_id(hello.node.boot_id);
  node.set_hostname(hello.node.hostname);
  for (const auto& address : hello.node.addresses) node.add_addresses(address);
  node.set_slots(static_cast<std::uint32_t>(std::max(0, hello.node.slots)));
  node.set_endpoint(hello.node.endpoint);
  node.mutable_topology()->set_rack(hello.node.rack);
  set_time(*to.mutable_readopt_window(), hello.node.readopt_window);
  for (const LocalJob& job : hello.running) {
    v1::LocalJob& local = *to.add_running();
    local.set_job_uuid(job.job_uuid);
    local.set_leader_epoch(job.leader_epoch);
    local.set_generation(job.generation);
    local.set_phase(phase_to(job.phase));
  }
}

void put_body(v1::AgentMsg& out, const Join& join) {
  v1::Join& to = *out.mutable_join();
  to.set_job_uuid(join.job_uuid);
  to.set_spare(join.spare);
  to.set_slots(static_cast<std::uint32_t>(std::max(0, join.slots)));
  to.set_preferred_index(join.preferred_index);
  to.set_generation(join.generation);
  to.set_restarts(static_cast<std::uint32_t>(std::max(0, join.restarts)));
  to.set_out_of_memory(static_cast<std::uint32_t>(std::max(0, join.out_of_memory)));
}

void put_body(v1::AgentMsg& out, const Ready& ready) {
  v1::Ready& to = *out.mutable_ready();
  to.set_job_uuid(ready.job_uuid);
  if (!ready.store_endpoint.empty()) {
    v1::Endpoint& endpoint = *to.add_bound();
    endpoint.set_name("store");
    endpoint.set_address(ready.store_endpoint);
  }
  for (const FailedCheck& check : ready.failed_checks) {
    v1::CheckResult& result = *to.add_checks();
    result.set_name(check.name);
    result.set_detail(check.detail);
    result.set_of_job(check.is_of_job);
  }
  set_time(*to.mutable_took(), ready.took);
}

void put_body(v1::AgentMsg& out, const Beat& beat) {
  v1::Beat& to = *out.mutable_beat();
  for (const JobBeat& job : beat.jobs) {
    v1::JobBeat& one = *to.add_jobs();
    one.set_job_uuid(job.job_uuid);
    one.set_generation(job.generation);
    one.set_phase(phase_to(job.phase));
    one.set_min_step(job.min_step);
    one.set_max_step(job.max_step);
    for (const int rank : job.stalled_ranks)
      one.add_stalled_ranks(static_cast<std::uint32_t>(rank));
    one.set_last_progress_age_ms(job.last_progress_age.count());
    for (const RankProgress& rank : job.ranks) {
      v1::RankProgress& progress = *one.add_ranks();
      progress.set_step(rank.step);
      progress.set_silent_ms(static_cast<std::uint64_t>(rank.silent_for.count()));
    }
  }
  to.set_load(beat.load);
  to.set_mem_free(beat.mem_free_bytes);
  to.set_slots_taken(static_cast<std::uint32_t>(std::max(0, beat.slots_taken)));
}

void put_body(v1::AgentMsg& out, const WorkerEvent& event) {
  v1::WorkerEvent& to = *out.mutable_worker();
  to.set_job_uuid(event.job_uuid);
  to.set_rank(static_cast<std::uint32_t>(event.global_rank));
  to.set_local_rank(static_cast<std::uint32_t>(event.local_rank));
  to.set_phase(event.phase == WorkerPhase::kStarted ? v1::PHASE_STARTED : v1::PHASE_EXITED);
  to.set_step(event.step);
  if (!event.exit) return;
  *to.mutable_exit() = describe_end(*event.exit);
  to.set_mono_ns(static_cast<std::uint64_t>(event.exit->seen_at.count()));
}

void put_body(v1::AgentMsg& out, const Stopped& stopped) {
  out.mutable_stopped()->set_job_uuid(stopped.job_uuid);
  out.mutable_stopped()->set_num_unkillable(static_cast<std::uint32_t>(stopped.num_unkillable));
}

void put_body(v1::AgentMsg& out, const Leave& leave) {
  out.mutable_leave()->set_job_uuid(leave.job_uuid);
  out.mutable_leave()->set_reason(printable(leave.reason));
}

void put_body(v1::AgentMsg& out, const NodeAlarm& alarm) {
  out.mutable_alarm()->set_kind(shifted_up<v1::AlarmKind>(alarm.kind));
  out.mutable_alarm()->set_job_uuid(alarm.job_uuid);
  out.mutable_alarm()->set_text(printable(alarm.text));
}

void put_body(v1::AgentMsg& out, const Decline& decline) {
  out.mutable_decline()->set_job_uuid(decline.job_uuid);
  out.mutable_decline()->set_reason(printable(decline.reason));
}

Hello hello_from(const v1::Hello& from) {
  Hello hello = {.protocol_min = from.v().proto_min(),
                 .protocol_max = from.v().proto_max(),
                 .build = from.v().build().substr(0, 64)};
  hello.node.node_id = from.node().node_id();
  hello.node.boot_id = from.node().boot_id();
  hello.node.hostname = from.node().hostname();
  for (const auto& address : from.node().addresses()) {
    if (hello.node.addresses.size() < kMostAddresses) hello.node.addresses.push_back(address);
  }
  hello.node.slots = bounded(from.node().slots(), kMostRanks);
  hello.node.endpoint = from.node().endpoint().substr(0, kMostEndpoint);
  hello.node.rack = from.node().topology().rack();
  hello.node.readopt_window = ms_of(from.readopt_window());
  for (const v1::LocalJob& job : from.running()) {
    hello.running.push_back(
        {job.job_uuid(), job.leader_epoch(), job.generation(), phase_from(job.phase())});
  }
  return hello;
}

Ready ready_from(const v1::Ready& from) {
  Ready ready = {.job_uuid = from.job_uuid()};
  for (const v1::Endpoint& endpoint : from.bound()) {
    if (endpoint.name() == "store") ready.store_endpoint = endpoint.address();
  }
  for (const v1::CheckResult& check : from.checks()) {
    if (!check.passed())
      ready.failed_checks.push_back({check.name(), check.detail(), check.of_job()});
  }
  ready.took = ms_of(from.took());
  return ready;
}

Beat beat_from(const v1::Beat& from) {
  Beat beat = {.load = from.load(), .mem_free_bytes = from.mem_free()};
  beat.slots_taken = bounded(from.slots_taken(), kMostRanks);
  for (const v1::JobBeat& job : from.jobs()) {
    JobBeat one = {.job_uuid = job.job_uuid(),
                   .generation = job.generation(),
                   .phase = phase_from(job.phase())};
    one.min_step = std::max<std::int64_t>(-1, job.min_step());
    one.max_step = std::max<std::int64_t>(-1, job.max_step());
    for (const auto rank : job.stalled_ranks())
      one.stalled_ranks.push_back(bounded(rank, kMostRanks));
    one.last_progress_age =
        Milliseconds(std::clamp<std::int64_t>(job.last_progress_age_ms(), 0, kMostMs));
    for (const v1::RankProgress& rank : job.ranks()) {
      one.ranks.push_back({std::max<std::int64_t>(-1, rank.step()),
                           Milliseconds(std::min<std::uint64_t>(
                               rank.silent_ms(), static_cast<std::uint64_t>(kMostMs)))});
    }
    beat.jobs.push_back(std::move(one));
  }
  return beat;
}

WorkerEvent worker_from(const v1::WorkerEvent& from) {
  WorkerEvent event = {.job_uuid = from.job_uuid()};
  event.phase = from.phase() == v1::PHASE_EXITED ? WorkerPhase::kExited : WorkerPhase::kStarted;
  event.global_rank = bounded(from.rank(), kMostRanks);
  event.local_rank = bounded(from.local_rank(), kMostRanks);
  event.step = std::max<std::int64_t>(-1, from.step());
  if (!from.has_exit()) return event;
  event.exit = to_worker_exit(from.exit());
  event.exit->global_rank = event.global_rank;
  event.exit->local_rank = event.local_rank;
  event.exit->seen_at = nanoseconds(
      std::min<std::uint64_t>(from.mono_ns(), std::numeric_limits<std::int64_t>::max()));
  return event;
}

// ---- coordinator -> agent ----

void put_body(v1::CoordMsg& out, const Welcome& welcome) {
  out.mutable_welcome()->mutable_v()->set_proto_min(welcome.protocol);
  out.mutable_welcome()->mutable_v()->set_proto_max(welcome.protocol);
  set_time(*out.mutable_welcome()->mutable_beat_every(), welcome.beat_every);
}

void put_body(v1::CoordMsg& out, const Assign& assign) {
  v1::Assign& to = *out.mutable_assign();
  to.set_node_index(static_cast<std::uint32_t>(assign.node_index));
  to.set_first_rank(static_cast<std::uint32_t>(assign.first_rank));
  to.set_count(static_cast<std::uint32_t>(assign.num_ranks));
  to.set_world(static_cast<std::uint32_t>(assign.world_size));
  to.set_nodes(static_cast<std::uint32_t>(assign.num_nodes));
  to.set_store_endpoint(assign.first_address);
  to.set_restart_count(static_cast<std::uint32_t>(assign.restart_count));
  to.set_out_of_memory(static_cast<std::uint32_t>(assign.out_of_memory));
}

void put_body(v1::CoordMsg& out, const Start& start) {
  out.mutable_start()->set_job_uuid(start.job_uuid);
  out.mutable_start()->set_assigned_epoch(start.assigned_epoch);
  out.mutable_start()->set_store_endpoint(start.store_endpoint);
}

void put_body(v1::CoordMsg& out, const Stop& stop) {
  out.mutable_stop()->set_job_uuid(stop.job_uuid);
  set_time(*out.mutable_stop()->mutable_grace(), stop.grace);
  out.mutable_stop()->set_reason(shifted_up<v1::Reason>(stop.reason));
  out.mutable_stop()->set_kill(stop.kill);
}

void put_body(v1::CoordMsg& out, const Notice& notice) {
  out.mutable_notice()->set_job_uuid(notice.job_uuid);
  out.mutable_notice()->set_kind(shifted_up<v1::NoticeKind>(notice.kind));
  out.mutable_notice()->set_text(printable(notice.text));
}

void put_body(v1::CoordMsg& out, const BeatAck& ack) {
  out.mutable_beat_ack()->set_mono_echo(static_cast<std::uint64_t>(ack.mono_echo.count()));
  out.mutable_beat_ack()->set_acked_seq(ack.acked_seq);
}

void put_body(v1::CoordMsg& out, const Fenced& fenced) {
  out.mutable_fenced()->set_reason(shifted_up<v1::FenceReason>(fenced.reason));
}

void put_body(v1::CoordMsg& out, const Quarantine& quarantine) {
  out.mutable_quarantine()->set_reason(printable(quarantine.reason));
  set_time(*out.mutable_quarantine()->mutable_ttl(), quarantine.remaining);
}

void put_body(v1::CoordMsg& out, const Refused& refused) {
  out.mutable_refused()->set_code(shifted_up<v1::RefusalCode>(refused.code));
  out.mutable_refused()->set_message(printable(refused.message));
}

void put_body(v1::CoordMsg& out, const Invite&) {
  out.mutable_invite();
}

template <typename Message>
void put_spec(Message& to, const std::shared_ptr<const JobDescription>& job, SpecsSent* specs) {
  if (!job) return;
  if (specs != nullptr) return specs->put(to, job);
  *to.mutable_spec() = to_job_spec(*job);
}

std::optional<Assign> assign_from(const v1::Assign& from) {
  Assign assign;
  assign.job = std::make_shared<const JobDescription>(describe_job(from.spec()));
  assign.node_index = bounded(from.node_index(), kMostNodes);
  assign.first_rank = bounded(from.first_rank(), kMostRanks);
  assign.num_ranks = bounded(from.count(), 4096);
  assign.world_size = bounded(from.world(), kMostRanks);
  assign.num_nodes = bounded(from.nodes(), kMostNodes);
  assign.first_address = from.store_endpoint();
  assign.restart_count = bounded(from.restart_count(), kMostRestarts);
  assign.out_of_memory = bounded(from.out_of_memory(), assign.restart_count);
  const bool is_possible = assign.num_ranks > 0 && assign.node_index < assign.num_nodes &&
                           assign.first_rank + assign.num_ranks <= assign.world_size;
  return is_possible ? std::optional(std::move(assign)) : std::nullopt;
}

Stop stop_from(const v1::Stop& from) {
  return {.job_uuid = from.job_uuid(),
          .grace = ms_of(from.grace()),
          .reason = shifted_down(from.reason(), StopReason::kStale),
          .kill = from.kill()};
}

}  // namespace

v1::AgentMsg to_proto(const AgentMessage& message) {
  v1::AgentMsg out;
  put(*out.mutable_fence(), message.fence);
  out.set_mono_ns(static_cast<std::uint64_t>(message.mono.count()));
  std::visit([&](const auto& body) { put_body(out, body); }, message.body);
  return out;
}

std::optional<AgentMessage> from_proto(const v1::AgentMsg& message) {
  AgentMessage out;
  out.fence = fence_from(message.fence());
  out.mono = nanoseconds(
      std::min<std::uint64_t>(message.mono_ns(), std::numeric_limits<std::int64_t>::max()));
  switch (message.m_case()) {
    case v1::AgentMsg::kHello:
      out.body = hello_from(message.hello());
      return out;
    case v1::AgentMsg::kJoin:
      out.body =
          Join{.job_uuid = message.join().job_uuid(),
               .spare = message.join().spare(),
               .slots = bounded(message.join().slots(), 4096),
               .preferred_index = std::clamp(message.join().preferred_index(), -1, kMostNodes),
               .generation = message.join().generation(),
               .restarts = bounded(message.join().restarts(), kMostRestarts),
               .out_of_memory = bounded(message.join().out_of_memory(), kMostRestarts)};
      return out;
    case v1::AgentMsg::kReady:
      out.body = ready_from(message.ready());
      return out;
    case v1::AgentMsg::kBeat:
      out.body = beat_from(message.beat());
      return out;
    case v1::AgentMsg::kWorker:
      out.body = worker_from(message.worker());
      return out;
    case v1::AgentMsg::kStopped:
      out.body = Stopped{.job_uuid = message.stopped().job_uuid(),
                         .num_unkillable = bounded(message.stopped().num_unkillable(), 4096)};
      return out;
    case v1::AgentMsg::kLeave:
      out.body = Leave{.job_uuid = message.leave().job_uuid(), .reason = message.leave().reason()};
      return out;
    case v1::AgentMsg::kAlarm:
      out.body = NodeAlarm{.kind = shifted_down(message.alarm().kind(), AlarmKind::kDeviceLost),
                           .job_uuid = message.alarm().job_uuid(),
                           .text = message.alarm().text()};
      return out;
    case v1::AgentMsg::kDecline:
      out.body =
          Decline{.job_uuid = message.decline().job_uuid(), .reason = message.decline().reason()};
      return out;
    case v1::AgentMsg::kAck:
    case v1::AgentMsg::M_NOT_SET:
      return std::nullopt;
  }
  return std::nullopt;
}

v1::CoordMsg to_proto(const CoordinatorMessage& message, SpecsSent* specs) {
  v1::CoordMsg out;
  put(*out.mutable_fence(), message.fence);
  std::visit([&](const auto& body) { put_body(out, body); }, message.body);
  if (const auto* assign = std::get_if<Assign>(&message.body))
    put_spec(*out.mutable_assign(), assign->job, specs);
  if (const auto* invite = std::get_if<Invite>(&message.body))
    put_spec(*out.mutable_invite(), invite->job, specs);
  return out;
}

std::optional<CoordinatorMessage> from_proto(const v1::CoordMsg& message) {
  CoordinatorMessage out;
  out.fence = fence_from(message.fence());
  switch (message.m_case()) {
    case v1::CoordMsg::kWelcome:
      out.body = Welcome{
          .protocol = message.welcome().v().proto_max(),
          .beat_every = std::clamp(
              ms_of(message.welcome().beat_every()), Milliseconds(10), Milliseconds(60'000))};
      return out;
    case v1::CoordMsg::kAssign: {
      auto assign = assign_from(message.assign());
      if (!assign) return std::nullopt;
      out.body = *std::move(assign);
      return out;
    }
    case v1::CoordMsg::kStart:
      out.body = Start{.job_uuid = message.start().job_uuid(),
                       .assigned_epoch = message.start().assigned_epoch(),
                       .store_endpoint = message.start().store_endpoint()};
      return out;
    case v1::CoordMsg::kStop:
      out.body = stop_from(message.stop());
      return out;
    case v1::CoordMsg::kNotice:
      out.body = Notice{.job_uuid = message.notice().job_uuid(),
                        .kind = shifted_down(message.notice().kind(), NoticeKind::kCancelled),
                        .text = message.notice().text()};
      return out;
    case v1::CoordMsg::kBeatAck:
      out.body = BeatAck{.mono_echo = nanoseconds(message.beat_ack().mono_echo()),
                         .acked_seq = message.beat_ack().acked_seq()};
      return out;
    case v1::CoordMsg::kFenced:
      out.body = Fenced{.reason = shifted_down(message.fenced().reason(), FenceReason::kReplaced)};
      return out;
    case v1::CoordMsg::kQuarantine:
      out.body = Quarantine{.remaining = ms_of(message.quarantine().ttl()),
                            .reason = message.quarantine().reason()};
      return out;
    case v1::CoordMsg::kRefused:
      out.body =
          Refused{.code = shifted_down(message.refused().code(), RefusalCode::kResourceExhausted),
                  .message = message.refused().message()};
      return out;
    case v1::CoordMsg::kInvite:
      out.body =
          Invite{std::make_shared<const JobDescription>(describe_job(message.invite().spec()))};
      return out;
    case v1::CoordMsg::kRedirect:
    case v1::CoordMsg::M_NOT_SET:
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace accel::agent
