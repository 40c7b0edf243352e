#include "launcher/workers/core_shares.h"

#include <cstdio>
#include <string>
#include <utility>

#include "launcher/devices/gpu_affinity.h"
#include "launcher/devices/gpu_list.h"
#include "launcher/workers/worker_environment.h"
#include "runtime/text/counted.h"

namespace accel::launcher {
namespace {

// The CPUs near each worker's GPU; empty when workers have none, or their places are not known.
std::vector<std::vector<int>> places_of_gpus(const WorkerSettings& settings,
                                             const LaunchHost& host) {
  if (settings.affinity == AffinityMode::kNone || settings.use_cpu || settings.accelerator ||
      settings.is_bound_by_mpirun || !host.nvidia) {
    return {};
  }
  EnvMap environment = host.environment;
  if (settings.gpu_ids != "all")
    environment["CUDA_VISIBLE_DEVICES"] = without_repeats(settings.gpu_ids);
  return cpus_near_gpus(host.nvidia(), environment, settings.num_processes);
}

// What is wrong when so many workers compute; empty: nothing.
std::string crowding(int num_workers, const AffinityPlan& plan, const Topology& topology) {
  if (plan.max_workers_per_core <= 1) return "";
  const size_t cores = topology.cores.size();
  return std::to_string(num_workers) + " workers share " + counted(cores, "core");
}

std::string quota_text(const CpuQuota& quota) {
  char cpus[32];
  std::snprintf(cpus, sizeof cpus, "%.3g", quota.cpus);
  return std::string(cpus) + (quota.cpus == 1 ? " CPU" : " CPUs") + ", the quota of " + quota.file;
}

}  // namespace

Result<AffinityPlan> divide_cores(const WorkerSettings& settings,
                                  const CommandLine& line,
                                  const LaunchHost& host,
                                  std::vector<std::string>& notices) {
  const bool must_bind = settings.affinity != AffinityMode::kNone;
  const int num_workers = settings.num_on_machine;
  const bool is_needed =
      must_bind || num_workers > 1 || decides_num_threads(host.environment, settings);
  if (!is_needed) return AffinityPlan();
  const bool needs_caches = settings.affinity == AffinityMode::kL3;
  Result<Topology> topology = host.topology(needs_caches ? Caches::kRead : Caches::kLeftOut);
  if (!topology) {
    if (must_bind) return std::move(topology).error();
    notices.push_back("the cores cannot be read (" + topology.error().message() +
                      "): every worker computes with one thread");
    return AffinityPlan();
  }
  const auto places = places_of_gpus(settings, host);
  AffinityPlan plan = places.empty() ? plan_affinity(*topology, num_workers, settings.affinity)
                                     : plan_affinity_near(*topology, places, settings.affinity);
  std::string crowd = crowding(num_workers, plan, *topology);
  const auto quota = host.cpu_quota ? host.cpu_quota() : std::nullopt;
  if (quota && bound_threads(plan, *quota, topology->cores.size()) &&
      num_workers > quota->num_threads()) {
    crowd = std::to_string(num_workers) + " workers share " + quota_text(*quota);
  }
  if (!crowd.empty()) {
    notices.push_back(crowd + ": they will wait for one another; lower " +
                      line.spelled("num_processes") + " or grant more cores");
  }
  return plan;
}

}  // namespace accel::launcher
