#include "launcher/start/slurm/slurm_nodes.h"

#include <algorithm>
#include <tuple>

#include "launcher/text/faults.h"
#include "runtime/text/counted.h"

namespace accel::launcher {
namespace {

Error several_tasks(const SlurmPlace& place, Program program) {
  const std::string name(name_of(program));
  return usage_error("SLURM runs " + std::to_string(place.tasks_on_node) + " tasks on node " +
                         place.node_name + ", and " + name + " starts the node's workers itself",
                     "use `srun --nodes=" + std::to_string(place.num_nodes()) +
                         " --ntasks-per-node=1 --cpu-bind=none " + name + " " +
                         spelled("nproc_per_node", program) + " " +
                         std::to_string(place.tasks_on_node) + " ...`");
}

Result<std::pair<int, int>> choose_range(const SlurmPlace& place, const SlurmRequest& request) {
  const int here = place.num_nodes();
  if (!request.num_nodes) return std::pair(here, here);
  const auto [least, most] = *request.num_nodes;
  const std::string where = place.role == SlurmRole::kTask ? "this step of srun" : "the allocation";
  if (most > here) {
    return usage_error(
        "--nnodes asks for up to " + counted(most, "node") + ", and " + where + " has " +
            std::to_string(here),
        "leave --nnodes out, or ask SLURM for them with --nodes=" + std::to_string(most));
  }
  if (most == 1) {
    const std::string flag = request.is_standalone ? "--standalone" : "--nnodes";
    return usage_error(
        flag + (request.is_standalone ? "" : " 1") + " with " + counted(here, "node") + " in " +
            where + ": every node would be a job of its own",
        "leave " + flag + " out, or start one node with `srun --nodes=1 --ntasks=1 --overlap " +
            std::string(name_of(request.program)) + " ...`");
  }
  return std::pair(least, most);
}

// One for each step, or for each launch of a batch script; a job that is queued again gets another one.
std::string folder_name(const SlurmPlace& place, const std::string& unique) {
  const std::string part = place.role == SlurmRole::kTask ? place.step_id : unique;
  return ".accel-slurm-" + (place.cluster.empty() ? "" : place.cluster + "-") + place.job_id + "." +
         part + "-" + std::to_string(place.restart_count);
}

std::string name_of_node(const SlurmPlace& place) {
  return place.node_name.empty() ? place.hosts[static_cast<std::size_t>(place.node_index)]
                                 : place.node_name;
}

// How many nodes the job has is the starter's business. A launcher that replaces another one is in a step of its own:
// its index is that of its node in the job.
ElasticSettings node_of_starter(const SlurmPlace& place, const std::string& folder) {
  ElasticSettings settings;
  settings.meeting = Meeting::kNode;
  settings.max_nodes = std::max(1, static_cast<int>(place.job_hosts.size()));
  settings.job = "slurm-" + place.job_id;
  settings.job_folder = folder;
  settings.launch_address = place.launch_address;
  settings.node_id = name_of_node(place);
  const auto found = std::find(place.job_hosts.begin(), place.job_hosts.end(), settings.node_id);
  if (found != place.job_hosts.end())
    settings.node_index = static_cast<int>(found - place.job_hosts.begin());
  return settings;
}

}  // namespace

std::optional<Error> refuse_components(const SlurmPlace& place, Program program) {
  if (place.role != SlurmRole::kBatch || place.num_components <= 1) return std::nullopt;
  const std::string name(name_of(program));
  const std::string all = "0-" + std::to_string(place.num_components - 1);
  return usage_error("SLURM job " + place.job_id + " has " + std::to_string(place.num_components) +
                         " components, and its batch script sees the nodes of the first alone",
                     "use `srun --het-group=" + all + " --ntasks-per-node=1 --cpu-bind=none " +
                         name + " ...` for the nodes of all of them, or --nnodes 1 for this node");
}

Result<std::optional<ElasticSettings>> plan_slurm_nodes(const SlurmPlace& place,
                                                        const SlurmRequest& request) {
  if (!request.starter_folder.empty() && place.role == SlurmRole::kTask)
    return std::optional(node_of_starter(place, request.starter_folder));
  const bool is_one_asked = request.num_nodes && request.num_nodes->second == 1;
  if (place.num_nodes() == 1 && is_one_asked) return std::optional<ElasticSettings>();
  if (auto refused = refuse_components(place, request.program)) return *std::move(refused);
  if (place.tasks_on_node > 1) return several_tasks(place, request.program);
  const auto range = choose_range(place, request);
  if (!range) return range.error();
  if (place.num_nodes() == 1) return std::optional<ElasticSettings>();
  ElasticSettings settings;
  std::tie(settings.min_nodes, settings.max_nodes) = *range;
  // Not all of them are needed: then it is not known which.
  if (settings.max_nodes == place.num_nodes()) settings.expected_hosts = place.hosts;
  settings.job = "slurm-" + place.job_id;
  settings.job_folder = request.base_folder + "/" + folder_name(place, request.unique);
  settings.meeting = Meeting::kStarter;
  if (place.role == SlurmRole::kTask) {
    settings.meeting = place.node_index == 0 ? Meeting::kHostNode : Meeting::kNode;
    settings.node_index = place.node_index;
    settings.node_id = name_of_node(place);
  }
  return std::optional(std::move(settings));
}

}  // namespace accel::launcher
