// Available: what this program and this machine have.
//
// The build of this program's LibTorch decides, not the machine: with a LibTorch for the CPU is_cuda_available() is false on a
// machine with GPUs.
//
// Threads:  any.
// Source:   accelerate.utils.imports.
#pragma once

#include <cstdint>

#include <c10/core/DeviceType.h>

#include <accel/export.h>

namespace accel {

// Whether LibTorch can compute on a device of this type here. NPU, MLU, MUSA and SDAA are one type, PrivateUse1, under the
// name that their library registers; query them by name.
[[nodiscard]] ACCEL_EXPORT bool is_device_available(c10::DeviceType type);
[[nodiscard]] ACCEL_EXPORT bool is_private_device_available(const char* name);

// The same, each for one type of device.
[[nodiscard]] inline bool is_cuda_available() {
  return is_device_available(c10::DeviceType::CUDA);
}
[[nodiscard]] inline bool is_mps_available() {
  return is_device_available(c10::DeviceType::MPS);
}
[[nodiscard]] inline bool is_xpu_available() {
  return is_device_available(c10::DeviceType::XPU);
}
[[nodiscard]] inline bool is_hpu_available() {
  return is_device_available(c10::DeviceType::HPU);
}
[[nodiscard]] inline bool is_torch_xla_available() {
  return is_device_available(c10::DeviceType::XLA);
}
[[nodiscard]] inline bool is_npu_available() {
  return is_private_device_available("npu");
}
[[nodiscard]] inline bool is_mlu_available() {
  return is_private_device_available("mlu");
}
[[nodiscard]] inline bool is_musa_available() {
  return is_private_device_available("musa");
}
[[nodiscard]] inline bool is_sdaa_available() {
  return is_private_device_available("sdaa");
}

// Whether an Accelerator takes mixed_precision "bf16", "fp16", "fp8".
[[nodiscard]] inline bool is_bf16_available() {
  return true;
}
[[nodiscard]] inline bool is_fp16_available() {
  return true;
}
[[nodiscard]] inline bool is_fp8_available() {
  return false;
}

// Whether a process listens at the port on 127.0.0.1. Throws kInvalidArgument for a port outside of 1..65535.
[[nodiscard]] ACCEL_EXPORT bool is_port_in_use(int port = 29500);

}  // namespace accel
