// LaunchHost: the machine and the process that asks for a launch, as the decisions see them.
//
// Threads:  real_launch_host() reads the environment and the process; what it hands out is called at need.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <accel/env_contract.h>
#include <accel/result.h>
#include <accel/topology.h>

#include "launcher/workers/mpi_program.h"
#include "runtime/cpu_quota.h"
#include "runtime/nvidia_gpus.h"

namespace accel::launcher {

// Tests put another one in its place.
struct LaunchHost {
  EnvMap environment;                                // of the launcher; the workers' is built on it
  std::function<Result<Topology>(Caches)> topology;  // called only when needed
  std::function<std::optional<CpuQuota>()> cpu_quota;  // empty: none
  std::function<int()> num_gpus;                    // visible GPUs, CUDA_VISIBLE_DEVICES respected
  std::function<int()> num_machine_cores;           // for --strict_compat; empty: one
  std::function<std::string()> resource_config;     // of SageMaker; empty where there is none
  std::function<Result<MpiProgram>()> mpi_program;  // called only when mpirun starts the workers
  // kPortInUse, with the holder's name, when the store cannot have this port here; empty: it can.
  std::function<std::optional<Error>(std::uint16_t)> port_fault;
  std::string home;                       // of the user, for default_config.yaml; may be empty
  std::string program_folder;             // of accel-launch; absolute
  std::function<NvidiaMachine()> nvidia;  // all of them; empty: nobody can tell
  std::string job_suffix;                 // makes the job's id unique on this machine
  std::string private_base;               // where private folders of jobs are made; may be empty
  bool stdin_is_terminal = false;
  bool stdout_is_terminal = false;
  bool is_torchrun = false;  // started as accel-torchrun
};
[[nodiscard]] LaunchHost real_launch_host();

}  // namespace accel::launcher
