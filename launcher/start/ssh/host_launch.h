// HostLaunch: one launcher on each host of a hostfile, started through ssh or pdsh.
//
// The peer gives such launches to `deepspeed --hostfile ...`; here each host runs an accel-torchrun of
// its own, and they meet as several machines do (docs/internals/rendezvous.md). What a host runs:
//
//   cd FOLDER && exec env NAME=VALUE ... [ACCEL_STDIN_VARIABLES=N] accel-torchrun --stop_with_stdin --nnodes M --node_rank R
//       --master_addr A --master_port P --nproc_per_node K FLAGS SCRIPT ARGUMENTS
//
// The end of its standard input is what stops it: no signal gets through ssh, but that does, also when
// ssh or this launcher is killed.
//
// Threads:  pure functions.
// Source:   hosts, filters and exported variables are DeepSpeed's (deepspeed/launcher/runner.py).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <accel/env_contract.h>
#include <accel/result.h>

#include "launcher/start/machines/settings/machines_settings.h"
#include "launcher/start/ssh/hostfile.h"
#include "launcher/start/ssh/stdin_variables.h"

namespace accel::launcher {

enum class HostTransport {
  kSsh,
  kPdsh,
  kMpirun,  // starts the workers itself: launcher/start/mpi/mpi_hosts.h
};

struct HostSettings {
  std::vector<HostSlots> hosts;  // in the order of machine ranks
  HostTransport transport = HostTransport::kSsh;
  std::string mpi;           // kMpirun: openmpi, mpich or mvapich
  std::string main_address;  // of the first host
  int main_port = kDefaultMainPort;

  [[nodiscard]] int num_workers() const;
};

// What each host runs, but for what is its own.
struct HostCommand {
  std::string folder;               // absolute
  std::string program;              // absolute: accel-torchrun
  Variables variables;              // exported
  Variables secrets;                // exported through the input (ssh)
  std::vector<std::string> flags;   // of accel-torchrun
  std::vector<std::string> script;  // and its arguments
};

// For /bin/sh on the host with index `machine`.
[[nodiscard]] std::string host_command_text(const HostSettings& settings,
                                            const HostCommand& command,
                                            std::size_t machine);

// What starts `text` on `host`. Requires: ssh or pdsh.
[[nodiscard]] std::vector<std::string> transport_words(HostTransport transport,
                                                       const std::string& host,
                                                       const std::string& text);

// Whether hosts get a variable of the caller with this name: DeepSpeed exports it, or PyTorch or we read it.
[[nodiscard]] bool is_exported(std::string_view name);

// What hosts are told: those of `workers` that `inherited` does not have so, those of `inherited` that
// are exported, and `listed`, which beat both.
[[nodiscard]] Variables exported_variables(const EnvMap& workers,
                                           const EnvMap& inherited,
                                           const EnvMap& listed);

}  // namespace accel::launcher
