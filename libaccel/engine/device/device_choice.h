// DeviceChoice: the device of a process, and why it is that one.
//
//   asked for the CPU, or no GPU visible          the CPU; nothing is loaded
//   ACCELERATE_TORCH_DEVICE=cuda[:n], or a GPU    the library of devices is loaded; cuda:n, else cuda:(local rank % number of GPUs)
//   a GPU that cannot be used                     an error with the reason and the way to go on: never the CPU without a word
//   another kind of device                        an error that names it
//
// Source:   tests/unit/libaccel/device/device_choice_test.cc.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <c10/core/Device.h>

#include <accel/env_contract.h>
#include <accel/result.h>

#include "runtime/nvidia_gpus.h"

namespace accel::device {

class DeviceBackend;

struct DeviceQuestion {
  std::optional<std::string> named;  // ACCELERATE_TORCH_DEVICE
  bool is_for_cpu = false;           // --cpu
  std::string visible_gpu;           // the name of the first GPU that CUDA would see; empty: none
  int local_rank = 0;
};

struct DeviceChoice {
  c10::Device device{c10::kCPU};
  DeviceBackend* backend =
      nullptr;  // of a device that is not the CPU; lives as long as the process
};

using LoadDevices = std::function<Result<DeviceBackend*>()>;

// Selects the device. Throws kEnvInvalid: ACCELERATE_TORCH_DEVICE names no device, or one that is not there; kUnsupported: a kind
// of device that libaccel has not, or a GPU that it cannot use.
[[nodiscard]] DeviceChoice choose_device(const DeviceQuestion& question, const LoadDevices& load);

// The name of the first GPU that CUDA would see under the environment, "a GPU" where only its device file shows; empty: none.
// device_file: /dev/nvidiactl; another path for tests. Sandboxes have it without /proc/driver/nvidia.
[[nodiscard]] std::string visible_gpu_name(const NvidiaMachine& machine,
                                           const EnvMap& environment,
                                           const std::string& device_file = "/dev/nvidiactl");

}  // namespace accel::device
