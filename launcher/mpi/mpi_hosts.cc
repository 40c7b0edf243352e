#include "launcher/mpi/mpi_hosts.h"

namespace accel::launcher {
namespace {

std::string describe(const HostSlots& host) {
  std::string text;
  for (const int slot : host.slots) text += (text.empty() ? "" : ",") + std::to_string(slot);
  return host.name + " has " + text;
}

}  // namespace

Result<MpiSettings> plan_mpi_hosts(const HostSettings& hosts) {
  const HostSlots& first = hosts.hosts.front();
  MpiHosts all{.slots = first.slots, .launcher = hosts.mpi};
  for (const HostSlots& host : hosts.hosts) {
    all.names.push_back(host.name);
    if (host.slots == first.slots) continue;
    return Error(ErrorCode::kInvalidArgument,
                 "--deepspeed_multinode_launcher " + hosts.mpi +
                     " starts ranks on the same slots of each host, but " + describe(first) +
                     " and " + describe(host),
                 "choose the same slots, or give --deepspeed_multinode_launcher ssh");
  }
  MpiSettings settings;
  settings.hosts = std::move(all);
  settings.num_machines = static_cast<int>(hosts.hosts.size());
  settings.num_processes = hosts.num_workers();
  settings.main_address = hosts.main_address;
  settings.main_port = hosts.main_port;
  return settings;
}

}  // namespace accel::launcher
