#include "launcher/devices/gpu_affinity.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <utility>

namespace accel::launcher {
namespace {

Topology part_of(const Topology& topology, const std::vector<int>& cpus) {
  Topology part;
  std::ranges::copy_if(topology.cores, std::back_inserter(part.cores), [&](const Core& core) {
    return std::ranges::any_of(core.cpus,
                               [&](int cpu) { return std::ranges::binary_search(cpus, cpu); });
  });
  return part;
}

}  // namespace

std::vector<std::vector<int>> cpus_near_gpus(const NvidiaMachine& machine,
                                             const EnvMap& environment,
                                             int num_workers) {
  std::vector<std::vector<int>> of_gpus;
  for (int index = 0; const NvidiaGpu* gpu = visible_gpu(machine, environment, index); ++index) {
    if (gpu->cpus.empty()) return {};
    of_gpus.push_back(gpu->cpus);
  }
  if (of_gpus.empty()) return {};
  std::vector<std::vector<int>> places;
  for (int rank = 0; rank < num_workers; ++rank)
    places.push_back(of_gpus[static_cast<std::size_t>(rank) % of_gpus.size()]);
  return places;
}

AffinityPlan plan_affinity_near(const Topology& topology,
                                const std::vector<std::vector<int>>& places,
                                AffinityMode mode) {
  AffinityPlan anywhere = plan_affinity(topology, static_cast<int>(places.size()), mode);
  std::map<std::vector<int>, std::vector<std::size_t>> workers_of_place;
  for (std::size_t worker = 0; worker < places.size(); ++worker)
    workers_of_place[places[worker]].push_back(worker);
  AffinityPlan plan;
  plan.workers.resize(places.size());
  for (const auto& [cpus, workers] : workers_of_place) {
    const Topology part = part_of(topology, cpus);
    if (part.cores.empty()) return anywhere;
    AffinityPlan local = plan_affinity(part, static_cast<int>(workers.size()), mode);
    plan.max_workers_per_core = std::max(plan.max_workers_per_core, local.max_workers_per_core);
    for (std::size_t i = 0; i < workers.size(); ++i)
      plan.workers[workers[i]] = std::move(local.workers[i]);
  }
  return plan.max_workers_per_core > anywhere.max_workers_per_core ? anywhere : plan;
}

}  // namespace accel::launcher
