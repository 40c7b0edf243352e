// PodLaunch: the command that starts a launcher on each machine of a TPU pod.
//
//   PYTHON -u -m torch_xla.distributed.xla_dist --tpu POD --vm M --env NAME=VALUE --restart-tpuvm-pod-server --
//       [sudo] accel-launch --tpu --no_tpu_cluster ... SCRIPT ARGUMENTS
//
// accel-launch, script and torch_xla are at the same paths on all of them. xla_dist writes the words between double
// quotes into a script for a shell; what such quotes do not hold back is escaped here.
//
// Threads:  pure functions.
// Source:   tpu_pod_launcher() of accelerate 1.15.0 (tests/peer/tpu_launch.py compares what xla_dist gets).
#pragma once

#include <string>
#include <vector>

#include <accel/result.h>

#include "launcher/start/tpu/tpu_launch.h"
#include "launcher/workers/script.h"

namespace accel::launcher {

struct PodScript {
  std::string name;  // of a file, or of a module; looked up on the machines
  std::vector<std::string> arguments;
  ScriptKind kind = ScriptKind::kFile;
};

struct PodLauncher {
  std::string python;           // of this machine, with torch_xla
  std::string launcher;         // accel-launch, absolute
  std::string mixed_precision;  // of --mixed_precision
  bool debug = false;
};

// Errors  kUsage: --no_python or --run_path. Requires: settings.pod.
[[nodiscard]] Result<WorkerCommand> pod_command(const PodScript& script,
                                                const TpuSettings& settings,
                                                const PodLauncher& here);

}  // namespace accel::launcher
