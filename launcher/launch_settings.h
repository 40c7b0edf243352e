// LaunchSettings: flags, configuration file and defaults merged into one set of values.
//
// A flag that was given beats the file, the file beats the default; that holds for every value (the
// peer ignores enable_cpu_affinity of the file, for one). Values are checked here, wherever they
// came from.
//
// Threads:  pure functions.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <accel/result.h>
#include <accel/topology.h>

#include "launcher/accelerators.h"
#include "launcher/config_file.h"
#include "launcher/elastic_settings.h"
#include "launcher/flags.h"
#include "launcher/hosts/host_launch.h"
#include "launcher/mpi/mpi_launch.h"
#include "launcher/node_settings.h"
#include "launcher/output_settings.h"
#include "launcher/paradigms/paradigm_settings.h"
#include "launcher/static/static_settings.h"
#include "launcher/tpu/tpu_launch.h"
#include "runtime/supervisor/job_spec.h"

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

struct LaunchSettings {
  bool use_cpu = false;
  bool multi_gpu = false;
  const Accelerator* accelerator = nullptr;  // of another maker than NVIDIA
  int num_processes = 1;                     // on this machine
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
  ParadigmSettings paradigms;  // FSDP and its like
  bool debug = false;

  OutputSettings output;
  int max_restarts = 0;
  std::optional<double> stop_grace_seconds;
  std::optional<double> linger_seconds;
  std::optional<ElasticSettings> elastic;  // several nodes
  std::optional<MpiSettings> mpi;          // mpirun is the one process that is started here
  std::optional<TpuSettings> tpu;          // torch_xla is the one process that is started here
  std::optional<HostSettings> hosts;       // ssh or pdsh for each host; num_processes: of them all
  std::optional<StaticSettings> machines;  // several machines without a daemon
  supervisor::HangPolicy hang;
  std::vector<supervisor::PreflightCheck> preflight;

  // Another program starts the workers.
  [[nodiscard]] bool has_starter() const { return mpi || hosts || (tpu && tpu->pod); }
  // Workers have ranks and a store, also a single one.
  [[nodiscard]] bool is_like_torchrun() const { return multi_gpu || paradigms.is_any(); }

  // Workers of all machines, as far as this one knows them.
  [[nodiscard]] int world_size() const {
    if (!machines) return num_processes;
    return machines->num_processes > 0 ? machines->num_processes
                                       : num_processes * machines->num_machines;
  }
};

// `file` is nullptr without a configuration; `num_gpus` is called at most once. What a user should
// know but need not mend goes to `notices`. Errors  the first fault, the others as its "also"
// lines: kInvalidArgument, kConfigInvalidValue, kUsage,
//         kUnsupported.
[[nodiscard]] Result<LaunchSettings> merge_settings(const CommandLine& line,
                                                    const ConfigFile* file,
                                                    const SlurmView& slurm,
                                                    const std::function<int()>& num_gpus,
                                                    std::vector<std::string>& notices);

}  // namespace accel::launcher
