#include "libaccel/launch/numa_affinity.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <set>

#include <sched.h>

#include <accel/environment.h>
#include <accel/error.h>

#include "runtime/own_environment.h"

namespace accel {
namespace launch {

std::vector<int> cores_near(const AffinityQuestion& question) {
  if (question.gpus.gpus.empty()) {
    const int num_workers = std::max(question.local_world_size, question.local_rank + 1);
    const AffinityPlan plan = plan_affinity(question.topology, num_workers, AffinityMode::kNode);
    return plan.workers[static_cast<std::size_t>(question.local_rank)].cpus;
  }
  const NvidiaGpu* gpu = visible_gpu(question.gpus, question.environment, question.local_rank);
  std::vector<int> near;
  if (gpu == nullptr) return near;
  for (const Core& core : question.topology.cores) {
    for (const int cpu : core.cpus) {
      if (std::binary_search(gpu->cpus.begin(), gpu->cpus.end(), cpu)) near.push_back(cpu);
    }
  }
  std::sort(near.begin(), near.end());
  return near;
}

namespace {

// Threads that are there already have an affinity of their own.
void bind_all_threads(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) {
    if (cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  }
  std::error_code failure;
  for (std::filesystem::directory_iterator thread("/proc/self/task", failure), end;
       !failure && thread != end;
       thread.increment(failure)) {
    const std::string name = thread->path().filename().string();
    pid_t id = 0;
    std::from_chars(name.data(), name.data() + name.size(), id);
    if (::sched_setaffinity(id, sizeof set, &set) == 0 || errno == ESRCH) continue;
    throw Error(ErrorCode::kTopology,
                "cannot bind thread " + name + " to the cores " + format_cpu_list(cpus) + ": " +
                    errno_text(errno),
                "run the process with these cores granted, or without set_numa_affinity()");
  }
}

}  // namespace
}  // namespace launch

void set_numa_affinity(int local_rank, std::optional<bool> verbose) {
  static std::mutex mutex;
  static std::set<int> done;
  if (local_rank < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "local_rank is " + std::to_string(local_rank) + ", below 0",
                "give the rank of this process on its machine");
  }
  const std::lock_guard lock(mutex);
  if (done.contains(local_rank)) return;
  const WorkerIdentity identity = or_throw(parse_worker_env(process_env()));
  const std::vector<int> cpus = launch::cores_near({.local_rank = local_rank,
                                                    .local_world_size = identity.local_world_size,
                                                    .gpus = read_nvidia_machine(),
                                                    .environment = own_environment(),
                                                    .topology = or_throw(read_topology())});
  if (!cpus.empty()) launch::bind_all_threads(cpus);
  const auto debug = process_env()("ACCELERATE_DEBUG_MODE");
  const bool is_debug =
      debug && !debug->empty() && or_throw(parse_env_bool("ACCELERATE_DEBUG_MODE", *debug));
  if (verbose.value_or(is_debug)) {
    std::printf("Assigning %zu cpu cores to process %d: %s\n",
                cpus.size(),
                local_rank,
                cpus.empty() ? "unchanged" : format_cpu_list(cpus).c_str());
  }
  done.insert(local_rank);
}

}  // namespace accel
