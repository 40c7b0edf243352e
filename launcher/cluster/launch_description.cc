#include "launcher/cluster/launch_description.h"

namespace accel::cluster {
namespace {

google::protobuf::Duration duration_of(std::chrono::milliseconds time) {
  google::protobuf::Duration out;
  out.set_seconds(time.count() / 1000);
  out.set_nanos(static_cast<int>(time.count() % 1000) * 1'000'000);
  return out;
}

}  // namespace

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
  for (const std::string& host : settings.expected_hosts)
    job.mutable_gather()->add_expected_hosts(host);
  *job.mutable_fence()->mutable_control_loss_grace() = duration_of(kControlLossGrace);
  job.mutable_fence()->set_hard(settings.hard_fencing);
  *job.mutable_fence()->mutable_lease() = duration_of(settings.lease);
  return job;
}

}  // namespace accel::cluster
