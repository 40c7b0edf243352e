// HostChoice: whether a launch goes through the hosts of a hostfile, from flags and configuration file.
//
//   --deepspeed_multinode_launcher   what happens, with DeepSpeed and several machines
//   pdsh, ssh, or nothing said       the hosts of --deepspeed_hostfile; without one as standard
//   standard, nossh                  this is one of the machines; the others are started elsewhere
//   openmpi, mpich, mvapich          the same hosts, but mpirun starts a rank for each slot
//   slurm                            the nodes of the allocation that this runs in; no hostfile is read
//
// Threads:  reads the hostfile; no state.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/config/config_file.h"
#include "launcher/flags/flags.h"
#include "launcher/start/ssh/host_launch.h"
#include "launcher/text/faults.h"

namespace accel::launcher {

struct HostRequest {
  const CommandLine& line;
  const ConfigFile* file = nullptr;
  int num_machines = 1;
  std::function<std::optional<int>()> num_processes;  // of all machines; asked at most once
  std::optional<std::string> main_address;
  std::optional<int> main_port;
  bool is_in_allocation = false;  // of SLURM
};

// std::nullopt: the launch does not go through a hostfile. After a fault the settings mean nothing.
[[nodiscard]] std::optional<HostSettings> choose_hosts(const HostRequest& request,
                                                       std::vector<std::string>& notices,
                                                       Faults& faults);

// The hosts that `request` takes of those in the hostfile. Errors  kInvalidArgument: another number of
// hosts than of machines, processes that do not divide or that a host has no slots for, port 0.
[[nodiscard]] Result<HostSettings> plan_hosts(std::vector<HostSlots> hosts,
                                              bool is_filtered,
                                              const HostRequest& request);

}  // namespace accel::launcher
