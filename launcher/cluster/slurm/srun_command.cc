#include "launcher/cluster/slurm/srun_command.h"

#include "launcher/start/slurm/slurm_nodes.h"

namespace accel::cluster {

std::vector<std::string> srun_command(const std::vector<std::string>& node_command,
                                      int num_nodes,
                                      const std::string& node) {
  const std::string number = std::to_string(node.empty() ? num_nodes : 1);
  std::vector<std::string> command = {"srun",
                                      "--nodes=" + number,
                                      "--ntasks=" + number,
                                      "--ntasks-per-node=1",
                                      "--cpu-bind=none",
                                      "--kill-on-bad-exit=0",
                                      "--no-kill",
                                      "--overlap",
                                      "--wait=0",
                                      "--export=ALL",
                                      "--input=none",
                                      "--quiet"};
  if (!node.empty()) {
    command.push_back("--nodelist=" + node);
    // A node that is down is not waited for.
    command.emplace_back("--immediate=20");
  }
  command.insert(command.end(), node_command.begin(), node_command.end());
  return command;
}

EnvMap srun_environment(EnvMap environment, const std::string& job_folder) {
  for (const char* name : {"SLURM_CPUS_PER_TASK",
                           "SRUN_CPUS_PER_TASK",
                           "SLURM_TRES_PER_TASK",
                           "SLURM_CPU_BIND",
                           "SLURM_DISTRIBUTION",
                           "SLURM_EXACT",
                           "SLURM_EXCLUSIVE",
                           "SLURM_GPUS_PER_TASK",
                           "SLURM_GPU_BIND",
                           "SLURM_HINT",
                           "SLURM_IMMEDIATE",
                           "SLURM_NPROCS",
                           "SLURM_NTASKS",
                           "SLURM_NTASKS_PER_CORE",
                           "SLURM_NTASKS_PER_GPU",
                           "SLURM_NTASKS_PER_NODE",
                           "SLURM_NTASKS_PER_SOCKET",
                           "SLURM_NTASKS_PER_TRES",
                           "SLURM_THREADS_PER_CORE"}) {
    environment.erase(name);
  }
  environment[launcher::kSlurmFolderVariable] = job_folder;
  return environment;
}

}  // namespace accel::cluster
