#include "agent/coordinator/state/record_text.h"

#include <algorithm>

#include "runtime/supervisor/protocol/json_fields.h"

namespace accel::agent {
namespace {

using supervisor::bytes_to_text;
using supervisor::from_enum_field;
using supervisor::from_field;
using supervisor::Json;
using supervisor::read_member;
using supervisor::read_new_member;
using supervisor::to_field;

constexpr int kVersion = 1;
constexpr std::string_view kEpochKey = "epoch";
constexpr std::string_view kJobPrefix = "job/";
constexpr std::string_view kNodePrefix = "node/";

std::int64_t ms_of(Duration duration) {
  return std::chrono::duration_cast<Milliseconds>(duration).count();
}

Record record_of(std::string key, const Json& value) {
  return {std::move(key), value.dump()};
}

// ---- the job's description: one list of fields for both directions ----

template <typename Visit>
void visit_description(JobDescription& job, Visit&& visit) {
  visit("job_id", job.job_id);
  visit("job_uuid", job.job_uuid);
  visit("user", job.user);
  visit("min_nodes", job.min_nodes);
  visit("max_nodes", job.max_nodes);
  visit("procs_per_node", job.procs_per_node);
  visit("expected_hosts", job.expected_hosts);
  visit("join_limit_ms", job.join_limit);
  visit("last_call_ms", job.last_call);
  visit("prepare_limit_ms", job.prepare_limit);
  visit("max_restarts", job.restart.budget.max_restarts);
  visit("backoff_initial_ms", job.restart.budget.backoff_initial);
  visit("backoff_max_ms", job.restart.budget.backoff_max);
  visit("stable_after_ms", job.restart.budget.stable_after);
  visit("max_out_of_memory", job.restart.budget.max_out_of_memory);
  visit("max_same_crash", job.restart.max_same_crash);
  visit("regroup_timeout_ms", job.restart.regroup_timeout);
  visit("stop_signal", job.stop.signal);
  visit("stop_grace_ms", job.stop.grace);
  visit("stop_linger_ms", job.stop.linger);
  visit("stop_kill_wait_ms", job.stop.kill_wait);
  visit("lease_ms", job.fence.lease);
  visit("control_loss_grace_ms", job.fence.control_loss_grace);
}

Json description_json(JobDescription job) {
  Json json = Json::object();
  visit_description(job, [&](const char* name, auto& field) { json[name] = to_field(field); });
  json["finish_skew_ms"] = job.finish_skew ? job.finish_skew->count() : -1;
  json["recruits"] = job.recruits;
  json["scale_up"] = to_field(job.scale_up);
  json["fencing"] = to_field(job.fence.fencing);
  const supervisor::RestartPolicy& budget = job.restart.budget;
  json["jitter"] = budget.jitter;
  json["fail_after"] = to_field(budget.fail_after);
  json["restart_after"] = to_field(budget.restart_after);
  json["payload"] = bytes_to_text(job.payload ? *job.payload : std::string());
  return json;
}

JobDescription description_from(const Json& json) {
  JobDescription job;
  visit_description(job, [&](const char* name, auto& field) { read_member(json, name, field); });
  std::int64_t skew = -1;
  read_member(json, "finish_skew_ms", skew);
  if (skew >= 0) job.finish_skew = Milliseconds(skew);
  read_member(json, "scale_up", [&](const Json& value) {
    from_enum_field(value, job.scale_up, ScaleUp::kAuto);
  });
  read_member(json, "fencing", [&](const Json& value) {
    from_enum_field(value, job.fence.fencing, Fencing::kHard);
  });
  supervisor::read_new_member(json, "recruits", job.recruits);
  supervisor::RestartPolicy& budget = job.restart.budget;
  supervisor::read_new_member(json, "jitter", budget.jitter);
  for (const auto& [name, causes] : {std::pair{"fail_after", &budget.fail_after},
                                     std::pair{"restart_after", &budget.restart_after}}) {
    if (!json.contains(name)) continue;
    read_member(json, name, [&out = *causes](const Json& value) {
      supervisor::from_enum_fields(value, out, supervisor::kLastExitCause);
    });
  }
  std::string payload;
  read_member(json, "payload", payload);
  job.payload = std::make_shared<const std::string>(std::move(payload));
  return job;
}

// ---- members ----

Json member_json(const Member& member, const State& state) {
  Json json = {{"node_id", member.node_id},
               {"first_rank", member.first_rank},
               {"num_ranks", member.num_ranks}};
  const auto node = state.nodes.find(member.node_id);
  const NodeInfo info = node == state.nodes.end() ? NodeInfo{} : node->second.info;
  json["boot_id"] = bytes_to_text(info.boot_id);
  json["hostname"] = info.hostname;
  json["address"] = info.addresses.empty() ? "" : bytes_to_text(info.addresses.front());
  return json;
}

RecordedMember member_from(const Json& json) {
  RecordedMember member;
  read_member(json, "node_id", member.node.node_id);
  read_member(json, "boot_id", member.node.boot_id);
  read_member(json, "hostname", member.node.hostname);
  std::string address;
  read_member(json, "address", address);
  if (!address.empty()) member.node.addresses.push_back(std::move(address));
  read_member(json, "first_rank", member.first_rank);
  read_member(json, "num_ranks", member.num_ranks);
  return member;
}

// ---- the job: one list of plain fields for both directions ----

template <typename Visit>
void visit_job(Job& job, Visit&& visit) {
  visit("request_id", job.request_id);
  visit("text", job.text);
  visit("generation", job.generation);
  visit("generation_floor", job.generation_floor);
  visit("assigned_epoch", job.assigned_epoch);
  visit("store_endpoint", job.store_endpoint);
  visit("previous_nodes", job.previous_nodes);
  visit("was_started", job.was_started);
  visit("restarts", job.history.restarts);
  visit("quick_failures", job.history.quick_failures);
  visit("restarts_out_of_memory", job.history.out_of_memory);
  visit("crash_key", job.crashes.key);
  visit("crash_count", job.crashes.count);
  visit("start_step", job.start_step);
  visit("max_step", job.max_step);
}

struct AskedStop {
  bool kill = false;
  std::optional<Milliseconds> grace;  // none: the job's
};

// The hardest that was asked for, also by a request that this very record writes down; none: nobody asked.
std::optional<AskedStop> stop_asked_for(const Job& job, const State& state) {
  std::optional<AskedStop> asked;
  const auto take = [&](bool kill, std::optional<Milliseconds> grace) {
    if (!asked) asked.emplace();
    asked->kill = asked->kill || kill;
    if (grace) asked->grace = std::min(*grace, asked->grace.value_or(*grace));
  };
  if (job.stop.end == JobPhase::kCancelled) take(job.stop.kill, job.stop.grace);
  for (const auto& [ticket, request] : state.stops) {
    if (request.job_uuid == job.description->job_uuid) take(request.kill, request.grace);
  }
  return asked;
}

}  // namespace

Record epoch_record(std::uint64_t epoch) {
  return record_of(std::string(kEpochKey), {{"version", kVersion}, {"epoch", epoch}});
}

Record job_record(const Job& job, const State& state, TimePoint now) {
  const bool is_committing = job.phase == JobPhase::kPreparing && job.commit_ticket;
  Job copy = job;
  if (is_committing) copy.phase = JobPhase::kRunning;
  if (job.ending) {
    copy.phase = job.ending->phase;
    copy.text = job.ending->text;
  }
  const auto asked_stop = stop_asked_for(job, state);
  Json json = {{"version", kVersion},
               {"phase", to_field(copy.phase)},
               {"is_cancelled", asked_stop.has_value()},
               {"description", description_json(*job.description)}};
  if (asked_stop) {
    json["stop_kill"] = asked_stop->kill;
    if (asked_stop->grace) json["stop_grace_ms"] = asked_stop->grace->count();
  }
  visit_job(copy, [&](const char* name, auto& field) { json[name] = to_field(field); });
  json["order"] = job.order;
  json["members"] = Json::array();
  for (const Member& member : job.members) {
    json["members"].push_back(member_json(member, state));
  }
  json["ledger_ns"] = Json::array();
  for (const Duration booked : settled(job.ledger, now).booked) {
    json["ledger_ns"].push_back(booked.count());
  }
  return record_of(std::string(kJobPrefix) + job.description->job_uuid, json);
}

Record node_record(const Node& node, TimePoint now) {
  Json losses = Json::array();
  for (const TimePoint at : node.losses) losses.push_back(ms_of(now - at));
  const Duration left = std::max(Duration::zero(), node.quarantine.until - now);
  return record_of(std::string(kNodePrefix) + node.info.node_id,
                   {{"version", kVersion},
                    {"node_id", node.info.node_id},
                    {"drained", node.is_drained},
                    {"drain_reason", bytes_to_text(node.drain_reason)},
                    {"quarantine_left_ms", node.quarantine.ttl.count() > 0 ? ms_of(left) : 0},
                    {"quarantine_ttl_ms", node.quarantine.ttl.count()},
                    {"quarantine_reason", bytes_to_text(node.quarantine.reason)},
                    {"loss_ages_ms", losses}});
}

Record forgotten_job(const JobUuid& uuid) {
  return {std::string(kJobPrefix) + uuid, ""};
}

RecordKind kind_of(const Record& record) {
  if (record.key == kEpochKey) return RecordKind::kEpoch;
  if (record.key.compare(0, kJobPrefix.size(), kJobPrefix) == 0) return RecordKind::kJob;
  if (record.key.compare(0, kNodePrefix.size(), kNodePrefix) == 0) return RecordKind::kNode;
  return RecordKind::kOther;
}

namespace {

template <typename Decode>
auto decode_record(const Record& record, Decode&& decode) {
  const std::string what = "record " + record.key;
  return supervisor::decode_json(record.value, what.c_str(), [&](const Json& json) {
    int version = 0;
    read_member(json, "version", version);
    if (version != kVersion) {
      throw supervisor::FieldError("has version " + std::to_string(version) +
                                   "; this build reads " + std::to_string(kVersion));
    }
    return decode(json);
  });
}

}  // namespace

Result<std::uint64_t> read_epoch(const Record& record) {
  return decode_record(record, [](const Json& json) {
    std::uint64_t epoch = 0;
    read_member(json, "epoch", epoch);
    return epoch;
  });
}

Result<std::pair<Job, std::vector<RecordedMember>>> read_job(const Record& record) {
  return decode_record(record, [](const Json& json) {
    std::pair<Job, std::vector<RecordedMember>> read;
    Job& job = read.first;
    read_member(json, "description", [&](const Json& value) {
      job.description = std::make_shared<const JobDescription>(description_from(value));
    });
    read_member(json, "phase", [&](const Json& value) {
      from_enum_field(value, job.phase, JobPhase::kCancelled);
    });
    visit_job(job, [&](const char* name, auto& field) { read_member(json, name, field); });
    read_new_member(json, "order", job.order);
    bool is_cancelled = false;
    read_member(json, "is_cancelled", is_cancelled);
    if (is_cancelled) {
      job.stop.end = JobPhase::kCancelled;
      read_new_member(json, "stop_kill", job.stop.kill);
      std::int64_t grace_ms = -1;
      read_new_member(json, "stop_grace_ms", grace_ms);
      if (grace_ms >= 0) job.stop.grace = Milliseconds(grace_ms);
    }
    read_member(json, "members", [&](const Json& value) {
      if (!value.is_array()) throw supervisor::FieldError("is not an array");
      for (const Json& member : value) read.second.push_back(member_from(member));
    });
    std::vector<std::int64_t> booked;
    read_member(json, "ledger_ns", booked);
    for (std::size_t i = 0; i < std::min(booked.size(), job.ledger.booked.size()); ++i) {
      job.ledger.booked[i] = std::chrono::nanoseconds(booked[i]);
    }
    return read;
  });
}

Result<Node> read_node(const Record& record, TimePoint now) {
  return decode_record(record, [now](const Json& json) {
    Node node;
    read_member(json, "node_id", node.info.node_id);
    read_member(json, "drained", node.is_drained);
    read_member(json, "drain_reason", node.drain_reason);
    Milliseconds left{0};
    read_member(json, "quarantine_left_ms", left);
    read_member(json, "quarantine_ttl_ms", node.quarantine.ttl);
    read_member(json, "quarantine_reason", node.quarantine.reason);
    node.quarantine.until = now + left;
    std::vector<std::int64_t> ages;
    read_member(json, "loss_ages_ms", ages);
    for (const std::int64_t age : ages) node.losses.push_back(now - Milliseconds(age));
    return node;
  });
}

}  // namespace accel::agent
