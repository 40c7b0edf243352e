// CpuFallback: several workers on a machine without any device, for which nobody said --cpu.
//
// The peer starts one process of `accelerate launch --num_processes 2` there. Two that are not told to compute on the CPU would
// look for GPUs, find none and each train alone, as the main process: the same training twice, over the same files.
//
// Threads:  a pure function, but for the question.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launcher/flags/flags.h"
#include "launcher/plan/launch_settings.h"
#include "launcher/text/faults.h"
#include "launcher/workers/launch_host.h"

namespace accel::launcher {

// Whether that is so; `has_device` is asked when it matters. Never for accel-torchrun, --strict_compat, DeepSpeed, Megatron-LM,
// TPUs, devices of other makers, and workers that another program or an agent starts.
[[nodiscard]] bool falls_back_to_cpu(const CommandLine& line,
                                     const LaunchSettings& settings,
                                     const std::function<bool()>& has_device);

// Whether workers of this machine may find one: NVIDIA's that are visible, or another maker's.
[[nodiscard]] bool has_any_device(const LaunchHost& host);

// Then turns settings.use_cpu on, with a notice. Who named GPUs meant them: --gpu_ids (or a file's) adds kUnsupported to `faults`.
void fall_back_to_cpu(const CommandLine& line,
                      const LaunchHost& host,
                      LaunchSettings& settings,
                      std::vector<std::string>& notices,
                      Faults& faults);

}  // namespace accel::launcher
