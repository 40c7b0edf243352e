#include "launcher/start/mpi/mpi_hosts.h"

namespace accel::launcher {

MpiSettings plan_mpi_hosts(const HostSettings& hosts) {
  MpiSettings settings;
  settings.hosts = MpiHosts{.hosts = hosts.hosts, .launcher = hosts.mpi};
  settings.num_machines = static_cast<int>(hosts.hosts.size());
  settings.num_processes = hosts.num_workers();
  settings.main_address = hosts.main_address;
  settings.main_port = hosts.main_port;
  return settings;
}

}  // namespace accel::launcher
