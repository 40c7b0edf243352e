#include "launcher/workers/compat_environment.h"

#include <algorithm>
#include <optional>
#include <string>

#include "runtime/text/number_text.h"

namespace accel::launcher {
namespace {

constexpr const char* kThreads = "OMP_NUM_THREADS";

// As the peer reads numbers: those below 0 count as not set.
std::optional<int> number_variable(const EnvMap& environment, const char* name) {
  const auto found = environment.find(name);
  if (found == environment.end()) return std::nullopt;
  const auto number = number_of<int>(found->second);
  return number && *number >= 0 ? number : std::nullopt;
}

int num_local_workers(const EnvMap& inherited, const WorkerSettings& settings) {
  for (const char* name :
       {"MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"}) {
    if (const auto number = number_variable(inherited, name)) return std::max(1, *number);
  }
  return std::max(1, settings.num_on_machine);
}

std::string threads_of_accelerate(const EnvMap& inherited,
                                  const WorkerSettings& settings,
                                  int num_machine_cores) {
  const auto said = inherited.find(kThreads);
  std::string otherwise = said == inherited.end() ? "1" : said->second;
  const bool is_undecided = said == inherited.end() || number_variable(inherited, kThreads) == 0;
  if (!settings.use_cpu || !is_undecided) return otherwise;
  const int share = num_machine_cores / num_local_workers(inherited, settings);
  return share > 1 ? std::to_string(share) : otherwise;
}

}  // namespace

EnvMap compat_thread_environment(const EnvMap& inherited,
                                 const WorkerSettings& settings,
                                 int num_machine_cores) {
  EnvMap env;
  const bool is_torchruns = !settings.tells_accelerate || settings.strategies.deepspeed;
  if (settings.num_cpu_threads) {
    env[kThreads] = std::to_string(*settings.num_cpu_threads);
  } else if (!is_torchruns) {
    env[kThreads] = threads_of_accelerate(inherited, settings, num_machine_cores);
  } else if (settings.num_processes > 1 && inherited.count(kThreads) == 0) {
    env[kThreads] = "1";
  }
  if (settings.tells_accelerate && settings.use_cpu && !settings.is_like_torchrun()) {
    env["KMP_AFFINITY"] = "granularity=fine,compact,1,0";
    env["KMP_BLOCKTIME"] = "1";
  }
  return env;
}

}  // namespace accel::launcher
