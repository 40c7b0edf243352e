// Topology: the cores this process may use, and how they are divided over workers.
//
// Only granted cores count: the process's affinity mask within the set that hwloc reports as allowed
// (cgroup cpuset included). A Core is a physical core with its hardware threads; the threads of one
// core are never given to different workers.
//
// Threads:  read_topology() opens hwloc and may be called from any thread; the other functions are pure.
// Cost:     read_topology() takes less than 1 ms on a small machine: call it once, and only when needed.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accel/result.h>

namespace accel {

// A physical core.
struct Core {
  std::vector<int> cpus;  // OS indices of its granted hardware threads, ascending; never empty
  int numa_node = 0;      // OS index of the memory node it belongs to
  int socket = 0;         // logical index of its processor package
  int l3 = 0;             // logical index of its last cache; unknown: of its package

  bool operator==(const Core&) const = default;
};

struct Topology {
  std::vector<Core> cores;  // ordered by memory node, then by position: neighbours share caches
};

// Reading the caches is the most expensive part: only if Core::l3 matters.
enum class Caches { kLeftOut, kRead };

// The machine from the view of this process. Errors  kTopology.
ACCEL_EXPORT Result<Topology> read_topology(Caches caches = Caches::kLeftOut);

// A synthetic machine in hwloc's form, "package:2 [numa] core:4 pu:2"; `granted` limits the
// usable hardware threads like an affinity mask. Errors  kTopology when hwloc does not
// understand it.
ACCEL_EXPORT Result<Topology> synthetic_topology(
    const std::string& description, const std::optional<std::vector<int>>& granted = std::nullopt);

enum class AffinityMode {
  kNone,       // workers keep the granted set; only the thread counts are divided
  kExclusive,  // each worker gets its own physical cores, if there are enough
  // Each worker gets all granted cores of one of these, and shares them with the other workers there.
  kNode,    // a memory node
  kSocket,  // a processor package
  kL3,      // cores that share a last cache
};

// One worker's part. Memory follows by first touch: a worker on one memory node allocates there
// while it has room. The caller sets a strict memory policy if it needs one (it could run a node out
// of memory while the other node has plenty).
struct WorkerShare {
  std::vector<int> cpus;         // ascending OS indices; empty keeps the granted set
  int num_threads = 1;           // physical cores for its compute threads, at least 1
  std::optional<int> numa_node;  // when all its cores are on one memory node; never for kNone

  bool operator==(const WorkerShare&) const = default;
};

struct AffinityPlan {
  std::vector<WorkerShare> workers;
  int max_workers_per_core = 1;  // above 1: cores are shared, and a warning is due
};

// kExclusive divides the cores evenly (sizes differ by at most one), neighbouring cores to the same
// worker. With more workers than cores the workers are spread over the cores. kNode, kSocket and kL3
// give each node, package or cache workers in proportion to its cores; workers that share one
// divide its cores only in `num_threads`. Requires num_workers >= 1 and a core.
ACCEL_EXPORT AffinityPlan plan_affinity(const Topology& topology,
                                        int num_workers,
                                        AffinityMode mode);

// The memory nodes of the cores of `cpus`, ascending.
ACCEL_EXPORT std::vector<int> numa_nodes_of(const Topology& topology, const std::vector<int>& cpus);

// "0-3,8,10-11"; the form of taskset and of /proc. Requires ascending numbers.
ACCEL_EXPORT std::string format_cpu_list(const std::vector<int>& cpus);

}  // namespace accel
