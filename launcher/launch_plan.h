// LaunchPlan: what `accel-launch` will do, decided before anything is started.
//
// resolve_launch() is the whole decision: command line, configuration file, environment and machine
// go in, a JobSpec for the shim comes out. A flag that was given beats the configuration file,
// which beats the default. All faults are collected before it fails; the first is the error, the
// others its "also" lines.
//
// Threads:  pure but for reading files (the configuration, the script's first bytes).
// Cost:     below 2 ms; the cores are only read when something depends on them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <accel/env_contract.h>
#include <accel/result.h>
#include <accel/topology.h>

#include "launcher/allocation_end.h"
#include "launcher/elastic_settings.h"
#include "launcher/mpi/mpi_launch.h"
#include "launcher/sagemaker/submission.h"
#include "launcher/static/static_settings.h"
#include "runtime/cpu_quota.h"
#include "runtime/nvidia_gpus.h"
#include "runtime/supervisor/job_spec.h"

namespace accel::launcher {

// The machine and the process that asks. Tests put another one in its place.
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

struct LaunchPlan {
  supervisor::JobSpec spec;
  bool quiet = false;  // no notices, no report
  bool stop_with_stdin = false;
  bool debug = false;    // ACCELERATE_DEBUG_MODE for the workers
  bool dry_run = false;  // print render_dry_run() and start nothing

  AllocationEnd allocation_end;

  std::optional<Submission> submission;    // for SageMaker; nothing is started here
  std::optional<ElasticSettings> elastic;  // several nodes: `spec` is this node's part
  std::optional<StaticSettings> machines;  // several machines without a daemon: as above

  // --help or --version: the text to print instead of launching anything.
  std::optional<std::string> answer;

  std::vector<std::string> notices;  // warnings for stderr, one line each, in the order found

  std::string mpi_hostfile;  // that mpirun will read; empty: none

  // What the report calls the processes of `spec`; empty: ranks.
  std::vector<std::string> worker_names;
  std::vector<std::string> hosts;  // each process is an ssh to one of them; may be empty

  // For the dry run.
  std::string config_file;          // empty when none was read
  EnvMap inherited;                 // what spec.env is compared with
  std::vector<WorkerShare> shares;  // one per worker; empty when the cores were not needed
};

// `arguments` is argv without the program's name.
// Errors  kUsage, kUnknownFlag, kInvalidArgument, kConfig*, kScriptMissing, kScriptNotExecutable,
//         kTopology, kUnsupported: the message names flag or key and value, the remedy what to
//         type.
[[nodiscard]] Result<LaunchPlan> resolve_launch(const std::vector<std::string>& arguments,
                                                const LaunchHost& host);

}  // namespace accel::launcher
