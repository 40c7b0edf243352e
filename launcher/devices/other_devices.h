// OtherDevices: devices that torch may compute on and that are not counted, only looked for.
//
// The peer loads torch and asks it. Here the device files tell: AMD, Ascend, Gaudi, Neuron, Cambricon, Moore Threads, Intel's
// GPUs beside the processor, TPUs, and NVIDIA's where they have no number (WSL, Jetson). /dev/kfd counts also where it is the
// GPU inside a processor of AMD: whether HIP can use that one, only HIP knows.
//
// Cost:     three folders are listed.
#pragma once

#include <string_view>

#include <accel/env_contract.h>

namespace accel::launcher {

// `entry` is the name of a device file, as below /dev: "kfd", "davinci0", "accel/accel0". What CUDA_VISIBLE_DEVICES hides
// does not count.
[[nodiscard]] bool is_other_device(std::string_view entry, const EnvMap& environment);

// An Intel GPU of its own (`vendor` as in /sys: "0x8086"); the one inside the processor has the PCI address 0000:00:02.0.
[[nodiscard]] bool is_discrete_intel_gpu(std::string_view vendor, std::string_view pci_address);

// The processors of laptops have a unit for networks (Intel's, AMD's) as /dev/accel/accelN, which torch cannot use. `vendor` is
// that of /sys/class/accel/accelN; "" when it cannot be read.
[[nodiscard]] bool is_npu_of_processor(std::string_view vendor);

[[nodiscard]] bool has_other_devices(const EnvMap& environment);

}  // namespace accel::launcher
