// Reading the machine with hwloc, and dividing its cores.
//
// hwloc leaves out what a cgroup's cpuset forbids, but not what sched_setaffinity (taskset, SLURM's
// task plugin, a parent accel-launch) took away, so the affinity mask is intersected here. Only
// packages, cores, hardware threads and memory nodes are read, and last caches where they are asked
// for: the x86 component visits every core to ask for caches and is left out, as are distances and
// memory attributes, which halves the time.

#include "accel/topology.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include <hwloc.h>
#include <sched.h>
#include <unistd.h>

namespace accel {
namespace {

struct TopologyDeleter {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using TopologyHandle = std::unique_ptr<hwloc_topology, TopologyDeleter>;

Error topology_error(std::string_view what) {
  return Error(ErrorCode::kTopology, std::string(what) + ": " + errno_text(errno));
}

// Whether the kernel shows its cores in sysfs: not in containers without /sys. hwloc would write a line of its own to stderr.
bool has_core_files() {
  const std::string folder =
      "/sys/devices/system/cpu/cpu" + std::to_string(::sched_getcpu()) + "/topology/";
  constexpr const char* kNames[] = {
      "package_cpus", "core_cpus", "core_siblings", "thread_siblings"};
  return std::any_of(std::begin(kNames), std::end(kNames), [&](const char* name) {
    return ::access((folder + name).c_str(), R_OK) == 0;
  });
}

Result<TopologyHandle> open_hwloc(const std::string* synthetic, Caches caches) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return topology_error("hwloc cannot start");
  TopologyHandle handle(raw);
  if (synthetic != nullptr && hwloc_topology_set_synthetic(raw, synthetic->c_str()) != 0) {
    return Error(ErrorCode::kTopology, "not a description of a machine: '" + *synthetic + "'");
  }
  hwloc_topology_set_all_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_NONE);
  hwloc_topology_set_type_filter(raw, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
  // Memory nodes hang below packages and groups; without those every core would see all of them.
  hwloc_topology_set_type_filter(raw, HWLOC_OBJ_PACKAGE, HWLOC_TYPE_FILTER_KEEP_ALL);
  hwloc_topology_set_type_filter(raw, HWLOC_OBJ_GROUP, HWLOC_TYPE_FILTER_KEEP_STRUCTURE);
  if (caches == Caches::kRead)
    hwloc_topology_set_type_filter(raw, HWLOC_OBJ_L3CACHE, HWLOC_TYPE_FILTER_KEEP_ALL);
  hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86");
  if (synthetic == nullptr && !has_core_files())
    hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "linux");
  hwloc_topology_set_flags(raw,
                           HWLOC_TOPOLOGY_FLAG_NO_DISTANCES | HWLOC_TOPOLOGY_FLAG_NO_MEMATTRS |
                               HWLOC_TOPOLOGY_FLAG_NO_CPUKINDS);
  if (hwloc_topology_load(raw) != 0) return topology_error("hwloc cannot read the machine");
  return handle;
}

// Ascending OS indices in `set`, only those in `granted` when it is given.
std::vector<int> cpus_of(hwloc_const_cpuset_t set, const std::optional<std::vector<int>>& granted) {
  std::vector<int> cpus;
  for (int cpu = hwloc_bitmap_first(set); cpu != -1; cpu = hwloc_bitmap_next(set, cpu)) {
    if (!granted || std::find(granted->begin(), granted->end(), cpu) != granted->end()) {
      cpus.push_back(cpu);
    }
  }
  return cpus;
}

int numa_node_of(hwloc_obj_t core) {
  if (core->nodeset == nullptr || hwloc_bitmap_iszero(core->nodeset)) return 0;
  return hwloc_bitmap_first(core->nodeset);
}

// Logical index of what of `type` holds the core; `otherwise` when nothing does.
int index_of_holder(hwloc_topology_t topology,
                    hwloc_obj_t core,
                    hwloc_obj_type_t type,
                    int otherwise) {
  const hwloc_obj_t holder = hwloc_get_ancestor_obj_by_type(topology, type, core);
  return holder == nullptr ? otherwise : static_cast<int>(holder->logical_index);
}

Result<Topology> collect(hwloc_topology_t topology,
                         const std::optional<std::vector<int>>& granted) {
  // Some virtual machines show no cores: then every hardware thread counts as one.
  const hwloc_obj_type_t type =
      hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  Topology result;
  for (hwloc_obj_t object = hwloc_get_next_obj_by_type(topology, type, nullptr); object != nullptr;
       object = hwloc_get_next_obj_by_type(topology, type, object)) {
    Core core{.cpus = cpus_of(object->cpuset, granted), .numa_node = numa_node_of(object)};
    core.socket = index_of_holder(topology, object, HWLOC_OBJ_PACKAGE, 0);
    core.l3 = index_of_holder(topology, object, HWLOC_OBJ_L3CACHE, core.socket);
    if (!core.cpus.empty()) result.cores.push_back(std::move(core));
  }
  if (result.cores.empty())
    return Error(ErrorCode::kTopology, "no core is granted to this process");
  std::stable_sort(result.cores.begin(), result.cores.end(), [](const Core& a, const Core& b) {
    return a.numa_node < b.numa_node;
  });
  return result;
}

Result<std::vector<int>> granted_cpus() {
  // The kernel's mask may be wider than cpu_set_t: grow until it fits.
  constexpr int kLargestMachine = 1 << 17;
  for (int num_cpus = CPU_SETSIZE; num_cpus <= kLargestMachine; num_cpus *= 2) {
    const size_t bytes = CPU_ALLOC_SIZE(num_cpus);
    std::vector<unsigned long> words((bytes + sizeof(unsigned long) - 1) / sizeof(unsigned long));
    auto* mask = reinterpret_cast<cpu_set_t*>(words.data());
    if (sched_getaffinity(0, bytes, mask) == 0) {
      std::vector<int> cpus;
      for (int cpu = 0; cpu < num_cpus; ++cpu) {
        if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, mask)) cpus.push_back(cpu);
      }
      return cpus;
    }
    if (errno != EINVAL) break;
  }
  return topology_error("the affinity mask cannot be read");
}

WorkerShare share_of(const std::vector<Core>& cores, size_t first, size_t last) {
  WorkerShare share;
  share.num_threads = static_cast<int>(last - first);
  share.numa_node = cores[first].numa_node;
  for (size_t i = first; i < last; ++i) {
    share.cpus.insert(share.cpus.end(), cores[i].cpus.begin(), cores[i].cpus.end());
    if (cores[i].numa_node != cores[first].numa_node) share.numa_node.reset();
  }
  std::sort(share.cpus.begin(), share.cpus.end());
  return share;
}

// What the cores of one worker have in common.
int domain_of(const Core& core, AffinityMode mode) {
  switch (mode) {
    case AffinityMode::kSocket:
      return core.socket;
    case AffinityMode::kL3:
      return core.l3;
    case AffinityMode::kNode:
    case AffinityMode::kNone:
    case AffinityMode::kExclusive:
      break;
  }
  return core.numa_node;
}

// Each worker goes where the middle of its even share of all cores is: so many to each domain as its cores allow.
AffinityPlan plan_whole_domains(const Topology& topology, size_t num_workers, AffinityMode mode) {
  std::map<int, std::vector<Core>> domains;
  for (const Core& core : topology.cores) domains[domain_of(core, mode)].push_back(core);
  std::vector<int> chosen;
  std::map<int, size_t> num_sharing;
  const size_t num_cores = topology.cores.size();
  for (size_t i = 0; i < num_workers; ++i) {
    const size_t first = i * num_cores / num_workers;
    const size_t last = std::max(first + 1, (i + 1) * num_cores / num_workers);
    chosen.push_back(domain_of(topology.cores[(first + last - 1) / 2], mode));
    ++num_sharing[chosen.back()];
  }
  AffinityPlan plan;
  for (const int domain : chosen) {
    const std::vector<Core>& cores = domains[domain];
    const size_t sharing = num_sharing[domain];
    WorkerShare share = share_of(cores, 0, cores.size());
    share.num_threads = static_cast<int>(std::max<size_t>(1, cores.size() / sharing));
    plan.max_workers_per_core = std::max(
        plan.max_workers_per_core, static_cast<int>((sharing + cores.size() - 1) / cores.size()));
    plan.workers.push_back(std::move(share));
  }
  return plan;
}

}  // namespace

Result<Topology> read_topology(Caches caches) {
  Result<std::vector<int>> granted = granted_cpus();
  if (!granted) return std::move(granted).error();
  Result<TopologyHandle> handle = open_hwloc(nullptr, caches);
  if (!handle) return std::move(handle).error();
  return collect(handle->get(), *granted);
}

Result<Topology> synthetic_topology(const std::string& description,
                                    const std::optional<std::vector<int>>& granted) {
  Result<TopologyHandle> handle = open_hwloc(&description, Caches::kRead);
  if (!handle) return std::move(handle).error();
  return collect(handle->get(), granted);
}

AffinityPlan plan_affinity(const Topology& topology, int num_workers, AffinityMode mode) {
  const size_t num_cores = topology.cores.size();
  const auto workers = static_cast<size_t>(num_workers);
  const bool is_divided = mode == AffinityMode::kNone || mode == AffinityMode::kExclusive;
  if (!is_divided) return plan_whole_domains(topology, workers, mode);
  AffinityPlan plan;
  plan.max_workers_per_core = static_cast<int>((workers + num_cores - 1) / num_cores);
  for (size_t i = 0; i < workers; ++i) {
    const size_t first = i * num_cores / workers;
    const size_t last = std::max(first + 1, (i + 1) * num_cores / workers);
    WorkerShare share = share_of(topology.cores, first, last);
    if (mode == AffinityMode::kNone) {  // unbound workers are alike
      share =
          WorkerShare{.num_threads = static_cast<int>(std::max<size_t>(1, num_cores / workers))};
    }
    plan.workers.push_back(std::move(share));
  }
  return plan;
}

std::vector<int> numa_nodes_of(const Topology& topology, const std::vector<int>& cpus) {
  std::set<int> nodes;
  for (const Core& core : topology.cores) {
    const bool is_used = std::any_of(core.cpus.begin(), core.cpus.end(), [&](int cpu) {
      return std::find(cpus.begin(), cpus.end(), cpu) != cpus.end();
    });
    if (is_used) nodes.insert(core.numa_node);
  }
  return {nodes.begin(), nodes.end()};
}

std::string format_cpu_list(const std::vector<int>& cpus) {
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += std::to_string(cpus[i]);
    if (last > i) text += '-' + std::to_string(cpus[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace accel
