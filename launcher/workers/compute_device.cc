#include "launcher/workers/compute_device.h"

#include "launcher/flags/flags.h"
#include "launcher/workers/worker_settings.h"

namespace accel::launcher {

ComputeDevice compute_device(const CommandLine& line,
                             const WorkerSettings& settings,
                             const std::function<bool()>& has_device) {
  if (settings.use_cpu) return ComputeDevice::kCpu;
  if (line.is_torchrun || line.is_on("strict_compat") || settings.is_tpu)
    return ComputeDevice::kUnsaid;
  return settings.accelerator != nullptr || has_device() ? ComputeDevice::kGpu
                                                         : ComputeDevice::kCpu;
}

}  // namespace accel::launcher
