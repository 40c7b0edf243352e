#include "agent/rendezvous/job_wire.h"

#include <algorithm>
#include <csignal>
#include <memory>
#include <string>

#include "agent/jobs/job_request.h"
#include "agent/rendezvous/wire_values.h"

namespace accel::agent {
namespace {

void take(bool is_given, const google::protobuf::Duration& time, Milliseconds& out) {
  if (is_given) out = ms_of(time);
}

}  // namespace

JobDescription describe_job(const v1::JobSpec& spec) {
  JobDescription job;
  job.job_id = spec.job_id();
  job.job_uuid = spec.job_uuid();
  job.user = spec.user();
  job.min_nodes = std::max(1, bounded(spec.min_nodes(), kMostNodes));
  job.max_nodes = std::max(job.min_nodes, bounded(spec.max_nodes(), kMostNodes));
  job.procs_per_node = std::max(1, bounded(spec.procs_per_node(), 4096));
  job.expected_hosts.assign(spec.gather().expected_hosts().begin(),
                            spec.gather().expected_hosts().end());
  take(spec.gather().has_join_limit(), spec.gather().join_limit(), job.join_limit);
  take(spec.gather().has_last_call(), spec.gather().last_call(), job.last_call);
  take(spec.gather().has_prepare_limit(), spec.gather().prepare_limit(), job.prepare_limit);
  if (!spec.gather().has_prepare_limit()) {
    for (const v1::Check& check : spec.preflight()) {
      Milliseconds limit = supervisor::PreflightCheck{}.limit;
      take(check.has_timeout(), check.timeout(), limit);
      job.prepare_limit += limit;
    }
  }
  if (spec.gather().has_finish_skew()) job.finish_skew = ms_of(spec.gather().finish_skew());
  job.scale_up =
      spec.restart().scale_up() == v1::SCALE_UP_IMMEDIATE ? ScaleUp::kAuto : ScaleUp::kParked;
  auto& budget = job.restart.budget;
  budget.max_restarts = bounded(spec.restart().max_restarts(), 1'000'000);
  take(spec.restart().has_backoff_initial(),
       spec.restart().backoff_initial(),
       budget.backoff_initial);
  take(spec.restart().has_backoff_max(), spec.restart().backoff_max(), budget.backoff_max);
  take(spec.restart().has_reset_after_progress(),
       spec.restart().reset_after_progress(),
       budget.stable_after);
  set_restart_rules(spec.restart(), budget);
  if (spec.restart().max_same_cause() != 0)
    job.restart.max_same_crash = bounded(spec.restart().max_same_cause(), 1'000'000);
  take(spec.gather().has_regroup_timeout(),
       spec.gather().regroup_timeout(),
       job.restart.regroup_timeout);
  if (spec.stop().signal() > 0 && spec.stop().signal() < NSIG)
    job.stop.signal = spec.stop().signal();
  take(spec.stop().has_grace(), spec.stop().grace(), job.stop.grace);
  job.fence.fencing = spec.fence().hard() ? Fencing::kHard : Fencing::kSoft;
  take(spec.fence().has_lease(), spec.fence().lease(), job.fence.lease);
  take(spec.fence().has_control_loss_grace(),
       spec.fence().control_loss_grace(),
       job.fence.control_loss_grace);
  v1::JobSpec carried = spec;
  carried.clear_token_key();
  job.payload = std::make_shared<const std::string>(carried.SerializeAsString());
  return job;
}

v1::JobSpec to_job_spec(const JobDescription& job) {
  v1::JobSpec spec;
  if (job.payload) (void)spec.ParseFromString(*job.payload);
  spec.clear_token_key();
  spec.set_job_id(job.job_id);
  spec.set_job_uuid(job.job_uuid);
  spec.set_user(job.user);
  spec.set_min_nodes(static_cast<std::uint32_t>(job.min_nodes));
  spec.set_max_nodes(static_cast<std::uint32_t>(job.max_nodes));
  return spec;
}

}  // namespace accel::agent
