#include "launcher/plan/start.h"

namespace accel::launcher {

bool meets_others(const Start& start) {
  return std::holds_alternative<MachinesSettings>(start) ||
         std::holds_alternative<ElasticSettings>(start);
}

bool has_starter(const Start& start) {
  return std::holds_alternative<MpiSettings>(start) ||
         std::holds_alternative<HostSettings>(start) || std::holds_alternative<PodStart>(start);
}

bool starts_workers_here(const Start& start) {
  if (const auto* nodes = std::get_if<ElasticSettings>(&start))
    return nodes->meeting != Meeting::kAgent && nodes->meeting != Meeting::kStarter;
  return !has_starter(start) && !std::holds_alternative<Submission>(start);
}

bool has_own_shim(const Start& start) {
  return std::holds_alternative<OneMachine>(start) ||
         std::holds_alternative<MachinesSettings>(start);
}

int world_size_of(const Start& start, int num_processes) {
  const auto* machines = std::get_if<MachinesSettings>(&start);
  if (machines == nullptr) return num_processes;
  return machines->num_processes > 0 ? machines->num_processes
                                     : num_processes * machines->num_machines;
}

}  // namespace accel::launcher
