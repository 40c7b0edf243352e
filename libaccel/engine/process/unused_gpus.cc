#include "libaccel/engine/process/unused_gpus.h"

namespace accel {

std::optional<std::string> unused_gpu_notice(const NvidiaMachine& machine,
                                             const EnvMap& environment) {
  const NvidiaGpu* const first = visible_gpu(machine, environment, 0);
  if (first == nullptr) return std::nullopt;
  return "training on the CPU: this machine has GPUs (the first is " + first->name +
         "), and this program has no CUDA: libaccel is built for the CPU. To say that the CPU is "
         "meant, launch with --cpu, or set ACCELERATE_USE_CPU=1 or AcceleratorOptions.cpu";
}

}  // namespace accel
