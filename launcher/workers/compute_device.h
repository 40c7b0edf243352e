// ComputeDevice: what the workers of a machine compute on, as far as its launcher says it.
//
// Machines of one job must not differ: some workers would wait in one backend for those of another.
//
// Threads:  a pure function, but for the question.
#pragma once

#include <functional>

namespace accel::launcher {

struct CommandLine;
struct WorkerSettings;

enum class ComputeDevice {
  kUnsaid,  // the program decides: accel-torchrun, --strict_compat, TPUs
  kCpu,     // --cpu, or no device is visible
  kGpu,     // or a device of another maker
};

// `has_device` is asked when it matters.
[[nodiscard]] ComputeDevice compute_device(const CommandLine& line,
                                           const WorkerSettings& settings,
                                           const std::function<bool()>& has_device);

}  // namespace accel::launcher
