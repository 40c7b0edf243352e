#include "launcher/cluster/meeting/launch_description.h"

#include <filesystem>

#include <google/protobuf/util/time_util.h>
#include <unistd.h>

#include "agent/config/node_address.h"
#include "launcher/cluster/meeting/endpoint.h"
#include "runtime/text/host_name.h"

namespace accel::cluster {
namespace {

google::protobuf::Duration duration_of(std::chrono::milliseconds time) {
  return google::protobuf::util::TimeUtil::MillisecondsToDuration(time.count());
}

v1::HangPolicy describe_hang(const supervisor::HangPolicy& policy) {
  v1::HangPolicy hang;
  if (policy.mode == supervisor::HangMode::kOff) return hang;
  hang.set_enabled(true);
  if (policy.mode == supervisor::HangMode::kFixed) {
    *hang.mutable_beat() = duration_of(policy.timeout);
  } else {
    hang.set_auto_(true);
    hang.set_safety(policy.safety);
  }
  *hang.mutable_first_beat() = duration_of(policy.first_beat);
  return hang;
}

v1::LogPolicy describe_log(const supervisor::LogPolicy& policy) {
  v1::LogPolicy log;
  if (policy.rotation.bytes > 0) {
    log.set_rotate_bytes(policy.rotation.bytes);
    log.set_keep(static_cast<std::uint32_t>(policy.rotation.keep));
  }
  if (policy.overflow == supervisor::Overflow::kDrop)
    log.set_overflow(v1::LogPolicy::OVERFLOW_DROP);
  if (policy.overflow == supervisor::Overflow::kSample)
    log.set_overflow(v1::LogPolicy::OVERFLOW_SAMPLE);
  log.set_merge_stderr(policy.merge_stderr);
  return log;
}

}  // namespace

void describe_check(const supervisor::PreflightCheck& check, v1::Check& out) {
  out.set_name(check.name);
  out.mutable_argv()->Assign(check.argv.begin(), check.argv.end());
  *out.mutable_timeout() = duration_of(check.limit);
}

v1::JobSpec describe_launch(const launcher::ElasticRequest& request) {
  const auto& [settings, spec] = request;
  v1::JobSpec job;
  job.set_job_id(settings.job);
  job.set_job_uuid(settings.job);
  job.set_min_nodes(static_cast<std::uint32_t>(settings.min_nodes));
  job.set_max_nodes(static_cast<std::uint32_t>(settings.max_nodes));
  job.set_procs_per_node(static_cast<std::uint32_t>(spec.workers.size()));
  job.mutable_restart()->set_max_restarts(static_cast<std::uint32_t>(spec.restart.max_restarts));
  *job.mutable_stop()->mutable_grace() = duration_of(spec.stop.grace);
  job.mutable_stop()->set_signal(spec.stop.signal);
  *job.mutable_gather()->mutable_join_limit() =
      duration_of(std::chrono::seconds(settings.join_timeout_seconds));
  *job.mutable_gather()->mutable_last_call() = duration_of(settings.last_call);
  for (const std::string& host : settings.expected_hosts)
    job.mutable_gather()->add_expected_hosts(host);
  *job.mutable_fence()->mutable_control_loss_grace() = duration_of(kControlLossGrace);
  for (const auto& check : spec.preflight) describe_check(check, *job.add_preflight());
  job.mutable_fence()->set_hard(settings.hard_fencing);
  *job.mutable_fence()->mutable_lease() = duration_of(settings.lease);
  return job;
}

v1::JobSpec describe_for_agents(const launcher::ElasticRequest& request) {
  const auto& [settings, spec] = request;
  v1::JobSpec job = describe_launch(request);
  job.set_job_id(settings.job.empty() ? spec.job_id : settings.job);
  job.clear_job_uuid();
  job.mutable_fence()->clear_control_loss_grace();  // agents come back
  if (!settings.hard_fencing) job.clear_fence();
  if (settings.max_nodes == 1) {
    job.clear_fence();
    job.clear_gather();
  }
  const supervisor::WorkerSpec& worker = spec.workers.front();
  job.mutable_argv()->Assign(worker.argv.begin(), worker.argv.end());
  for (const EnvMap* variables : {&spec.env, &worker.env}) {
    for (const auto& [name, value] : *variables) (*job.mutable_env())[name] = value;
  }
  std::error_code failure;
  job.set_cwd(std::filesystem::current_path(failure).string());
  *job.mutable_hang() = describe_hang(spec.hang);
  *job.mutable_log() = describe_log(spec.log);
  if (!worker.cpus.empty()) job.mutable_affinity()->set_mode(v1::Affinity::MODE_EXCLUSIVE);
  return job;
}

agent::NodeMemberOptions describe_node(const launcher::ElasticRequest& request,
                                       const MeetingPlace& place) {
  const launcher::ElasticSettings& settings = request.settings;
  agent::NodeMemberOptions options;
  const std::string own_host = host_name();
  options.node.node_id =
      settings.node_id.empty() ? own_host + "-" + std::to_string(::getpid()) : settings.node_id;
  options.node.boot_id = agent::boot_id();
  options.node.hostname = own_host;
  const std::string& chosen = settings.etcd.own_address;
  options.node.addresses = {chosen.empty() ? own_address_towards(place.endpoint, place.is_local)
                                           : chosen};
  options.node.slots = static_cast<int>(request.spec.workers.size());
  options.token_key = place.token_key;
  options.preferred_index = settings.node_index;
  options.job = describe_launch(request);
  options.workers = {.job_uuid = settings.job,
                     .spec = request.spec,
                     .shim = {},
                     .address = options.node.addresses[0]};
  options.workers.spec.node_id = options.node.node_id;
  return options;
}

}  // namespace accel::cluster
