// WorkerSettings: what the workers of a launch are told and how they are watched, however they are started.
//
// Threads:  plain values.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <accel/env_contract.h>
#include <accel/topology.h>

#include "launcher/devices/accelerators.h"
#include "launcher/workers/output_settings.h"
#include "launcher/workers/strategy_settings.h"
#include "runtime/supervisor/protocol/job_spec.h"

namespace accel::launcher {

// More workers on one machine are a slip of the finger: each takes about ten descriptors and a
// stack of log buffers in the shim, and no machine has so many cores.
inline constexpr int kMaxProcesses = 1024;

struct DynamoOptions {
  std::string backend = "NO";  // upper case, as ACCELERATE_DYNAMO_BACKEND wants it
  std::string mode = "default";
  bool use_fullgraph = false;
  bool use_dynamic = false;
  bool use_regional_compilation = false;
};

struct WorkerSettings {
  bool use_cpu = false;
  bool multi_gpu = false;
  const Accelerator* accelerator = nullptr;  // of another maker than NVIDIA
  bool is_tpu = false;                       // torch_xla starts the processes on the cores
  int num_processes = 1;                     // that this launcher starts
  int num_on_machine = 1;                    // workers here, at most, also those that mpirun starts
  bool is_bound_by_mpirun = false;           // mpirun gives its ranks cores and GPUs itself
  std::optional<int> main_process_port;      // 0: any; absent: 29500 when free, else any
  std::string role = "default";
  std::string gpu_ids = "all";
  std::string mixed_precision = "no";
  std::optional<int> num_cpu_threads;
  bool enable_cpu_affinity = false;
  AffinityMode affinity = AffinityMode::kNone;  // --enable_cpu_affinity and --numa_binding
  bool tells_accelerate = true;                 // variables ACCELERATE_*; torchrun sets none
  bool strict_compat = false;                   // compat_environment.h
  DynamoOptions dynamo;
  StrategySettings strategies;  // FSDP and its like
  EnvMap device_variables;      // of TPUs
  bool debug = false;

  OutputSettings output;
  int max_restarts = 0;
  std::optional<double> stop_grace_seconds;
  std::optional<double> linger_seconds;
  supervisor::HangPolicy hang;
  std::vector<supervisor::PreflightCheck> preflight;

  // Workers have ranks and a store, also a single one.
  [[nodiscard]] bool is_like_torchrun() const { return multi_gpu || strategies.is_any(); }
};

}  // namespace accel::launcher
