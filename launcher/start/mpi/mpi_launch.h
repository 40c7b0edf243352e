// MpiLaunch: workers that mpirun starts, on the hosts of its hostfile.
//
// mpirun is the one process that the shim watches; the ranks are its children, here and on other hosts,
// and learn who they are from its variables (OMPI_COMM_WORLD_RANK, PMI_RANK, ...), as libaccel and
// Accelerate read them. Rank 0 of the job hosts the store.
//
// Threads:  pure functions, but for find_mpi_program(), which runs `mpirun --version`, and hand_to_mpirun(), which calls
//           LaunchHost::mpi_program and .deepspeed_env.
// Source:   the words are those of `accelerate launch` 1.15.0 (tests/peer/mpi_launch.py compares them);
//           those with `hosts` are our own, see docs/reference/parity.md.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accel/env_contract.h>
#include <accel/result.h>

#include "launcher/start/machines/settings/machines_settings.h"
#include "launcher/start/ssh/host_launch.h"
#include "launcher/start/ssh/hostfile.h"
#include "launcher/workers/launch_host.h"
#include "launcher/workers/mpi_program.h"
#include "runtime/supervisor/protocol/job_spec.h"

namespace accel::launcher {

// The hosts of a launch of DeepSpeed, on each of which mpirun starts a rank for each slot.
struct MpiHosts {
  std::vector<HostSlots>
      hosts;             // in the order of ranks, which see the GPUs that are their host's slots
  std::string launcher;  // openmpi, mpich or mvapich: the mpirun that is meant

  [[nodiscard]] bool have_same_slots() const;
  [[nodiscard]] int most_slots() const;  // of one host
};

struct MpiSettings {
  std::string hostfile;           // empty with `hosts`
  std::optional<MpiHosts> hosts;  // in the place of a hostfile
  int num_machines = 1;
  // Of all machines; absent: one on each host of the hostfile. Where they do not divide by the machines they
  // fill the slots of its hosts in turn.
  std::optional<int> num_processes;
  std::string main_address = "127.0.0.1";
  int main_port = kDefaultMainPort;

  // At most.
  [[nodiscard]] int num_on_machine() const {
    if (hosts) return hosts->most_slots();
    return num_processes ? (*num_processes + num_machines - 1) / num_machines : 1;
  }
};

// What the user said of them.
struct MpiRequest {
  std::string hostfile;
  int num_machines = 1;
  std::optional<int> num_processes;
  std::optional<std::string> main_address;
  std::optional<int> main_port;
};

// Errors  kUsage, kInvalidArgument: an address or port that several machines need and nobody gave, port 0.
[[nodiscard]] Result<MpiSettings> plan_mpi(const MpiRequest& request);

// Of a launch of DeepSpeed over the hosts of a hostfile. The peer hands openmpi, mpich and mvapich to DeepSpeed with flags
// which that refuses under all three. Here filters and --num_processes choose hosts and slots as they do for ssh; mpirun
// starts a rank for each.
[[nodiscard]] MpiSettings plan_mpi_hosts(const HostSettings& hosts);

// By what `mpirun --version` prints.
[[nodiscard]] MpiFamily mpi_family(std::string_view version);

// mpirun or mpiexec on the PATH of `environment`. Errors  kExecFailed: there is none.
[[nodiscard]] Result<MpiProgram> find_mpi_program(const EnvMap& environment);

// Whether `program` is the mpirun that the settings name. Errors  kUsage: it is of the other family.
[[nodiscard]] Result<void> check_mpi_program(const MpiSettings& settings,
                                             const MpiProgram& program);

// Whether there is such a file here: what mpirun says of one that is missing is a page long. It is not read: it may be a
// pipe. Errors  kConfigUnreadable.
[[nodiscard]] Result<void> check_mpi_hostfile(const std::string& path);

// The command line that starts `command` in each rank. With `hosts` a shell in between gives ranks what
// DeepSpeed reads: RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE. Hosts with different slots are programs
// of their own to mpirun, between colons, which are one job nevertheless.
[[nodiscard]] std::vector<std::string> mpirun_words(const MpiSettings& settings,
                                                    const MpiProgram& program,
                                                    const std::vector<std::string>& command);

// Adds to `env`, of mpirun, how the ranks find rank 0, and with Open MPI that ranks on other hosts get
// the variables that are not in `inherited` or differ from it; the others hand all of them on anyway.
// With `hosts`, also the GPUs, `listed`, and for other hosts what DeepSpeed exports.
void add_mpi_environment(EnvMap& env,
                         const EnvMap& inherited,
                         const EnvMap& listed,
                         const MpiSettings& settings,
                         const MpiProgram& program);

// Makes the job of one mpirun of the job of one worker. `spec` holds one worker, the command of a rank. Errors  those of LaunchHost::mpi_program,
// check_mpi_program() and read_listed_variables().
[[nodiscard]] Result<void> hand_to_mpirun(supervisor::JobSpec& spec,
                                          const MpiSettings& settings,
                                          const LaunchHost& host);

}  // namespace accel::launcher
