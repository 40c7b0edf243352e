#include "launcher/start/slurm/slurm_machines.h"

#include <string>
#include <utility>

#include "launcher/start/slurm/slurm_nodes.h"
#include "runtime/text/counted.h"

namespace accel::launcher {
namespace {

Error other_number(const SlurmPlace& place, int num_machines, const std::string& flag) {
  const int here = place.num_nodes();
  const std::string where = place.role == SlurmRole::kTask ? "this step of srun" : "the allocation";
  return Error(ErrorCode::kUsage,
               flag + " is " + std::to_string(num_machines) + ", but " + where + " has " +
                   counted(here, "node"),
               "ask SLURM for as many with --nodes=" + std::to_string(num_machines) + ", or give " +
                   flag + " " + std::to_string(here));
}

}  // namespace

Result<SlurmMachines> choose_slurm_machines(const CommandLine& line,
                                            const std::optional<SlurmPlace>& place,
                                            int num_machines) {
  SlurmMachines machines;
  const bool is_said =
      line.has("machine_rank") || line.has("nnodes") || line.has("agent") || line.etcd;
  if (!place || num_machines == 1 || is_said) return machines;
  const bool has_address = line.has("main_process_ip");
  // A batch script that names an address starts launchers on other machines itself.
  if (has_address && place->role == SlurmRole::kBatch) return machines;
  if (auto refused = refuse_components(*place, line.program())) return *std::move(refused);
  if (place->num_nodes() != num_machines)
    return other_number(*place, num_machines, line.spelled("num_machines"));
  machines.are_nodes = !has_address;
  if (!has_address) return machines;
  if (place->tasks_on_node > 1) {
    return Error(ErrorCode::kUsage,
                 "SLURM runs " + std::to_string(place->tasks_on_node) + " tasks on node " +
                     place->node_name + ", and each would be machine " +
                     std::to_string(place->node_index),
                 "give srun --ntasks-per-node=1: " + std::string(name_of(line.program())) +
                     " starts the node's workers itself");
  }
  machines.rank = place->node_index;
  return machines;
}

}  // namespace accel::launcher
