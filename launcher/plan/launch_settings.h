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

#include "launcher/config/config_file.h"
#include "launcher/flags/flags.h"
#include "launcher/plan/node_settings.h"
#include "launcher/plan/start.h"
#include "launcher/start/tpu/tpu_launch.h"
#include "launcher/watch/watch_settings.h"
#include "launcher/workers/worker_settings.h"

namespace accel::launcher {

struct LaunchSettings : WorkerSettings {
  Start start;
  WatchSettings watch;
  std::optional<TpuSettings> tpu;  // torch_xla is what this launcher starts, here or for a pod

  // Workers of all machines, as far as this one knows them.
  [[nodiscard]] int world_size() const { return world_size_of(start, num_processes); }
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
