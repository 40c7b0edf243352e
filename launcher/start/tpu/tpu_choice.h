// TpuChoice: whether a launch is one on TPUs, of this machine or of a pod, from flags and configuration file.
//
// What flags and keys of pods say counts with --tpu_cluster alone, or tpu_use_cluster of the file. Lists of both are
// one list, and a switch is on when either says so.
//
// Threads:  pure functions.
#pragma once

#include <optional>

#include "launcher/config/config_file.h"
#include "launcher/flags/flags.h"
#include "launcher/start/tpu/tpu_launch.h"
#include "launcher/text/faults.h"

namespace accel::launcher {

// std::nullopt: no launch on TPUs. `has_other`: flags give it to other hardware than the file's. Faults: a pod without
// a name, a variable that is none.
[[nodiscard]] std::optional<TpuSettings> choose_tpu(const CommandLine& line,
                                                    const ConfigFile* file,
                                                    bool has_other,
                                                    Faults& faults);

}  // namespace accel::launcher
