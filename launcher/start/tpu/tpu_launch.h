// TpuLaunch: a function of a Python script on all cores of the TPUs of this machine.
//
// One process is started here; in it torch_xla starts one for each core, and each calls the function,
// as under `accelerate launch --tpu`. torch_xla and accelerate are those of the script's Python.
//
// Threads:  pure functions.
// Source:   tpu_launcher() and prepare_tpu() of accelerate 1.15.0; tests/peer/tpu_launch.py.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accel/env_contract.h>
#include <accel/result.h>

#include "launcher/workers/script.h"

namespace accel::launcher {

// All machines of a pod, which torch_xla's xla_dist reaches.
struct TpuPod {
  std::string name;
  std::vector<std::string> machines;   // virtual ones; empty: those of its instance groups
  std::vector<std::string> variables;  // NAME=VALUE, for each machine
  bool use_sudo = false;
  std::optional<int> num_processes;  // absent: all cores
};

struct TpuSettings {
  std::string function = "main";
  std::optional<TpuPod> pod;   // absent: this machine
  bool downcast_bf16 = false;  // float is bfloat16, double is float32; else both are bfloat16
};

// The command that gives `function` of the script or module of `command` to torch_xla.
// Errors  kUsage: it is no Python, or --run_path.
[[nodiscard]] Result<WorkerCommand> tpu_command(const WorkerCommand& command,
                                                const TpuSettings& settings);

// What torch_xla reads for a mixed precision.
[[nodiscard]] EnvMap tpu_variables(const TpuSettings& settings, std::string_view mixed_precision);

}  // namespace accel::launcher
