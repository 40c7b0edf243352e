// MachinesSettings: what a launch on several machines without a daemon needs beside the workers of this one.
//
// Threads:  plain values.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "launcher/flags/etcd_access.h"
#include "launcher/text/program.h"
#include "launcher/workers/compute_device.h"

namespace accel::launcher {

// Of the store on machine 0, when nobody says another; as in torchrun.
inline constexpr std::uint16_t kDefaultMainPort = 29500;

struct MachinesSettings {
  int num_machines = 2;
  // Absent: by the order in which the machines join; whose address is the main process's is machine 0.
  std::optional<int> machine_rank;
  std::string address;     // of machine 0: a name or numeric
  std::uint16_t port = 0;  // where its store listens
  int num_processes = 0;   // on all machines together; 0: each machine says its own
  ComputeDevice device = ComputeDevice::kUnsaid;
  std::string run_id = "none";
  // Says who is machine 0, and where: then address is empty until the machines have met, and port, unless
  // 0, is where it listens when that is this machine.
  std::optional<EtcdAccess> etcd;
  bool may_be_main = true;                 // false: machine 0 is another launcher
  std::chrono::seconds join_timeout{600};  // from the start to the last join
  Program program = Program::kLaunch;      // whose words messages use

  bool is_at_endpoint = false;  // --rdzv_endpoint, in place of an address and a port

  [[nodiscard]] bool is_main() const { return machine_rank == 0; }

  // The flags that say where machine 0 is, and the one of them for its port, in the user's words.
  [[nodiscard]] std::string place_flags() const;
  [[nodiscard]] std::string port_flag() const;
};

}  // namespace accel::launcher
