// DeviceLibrary: libaccel_cuda.so, which is loaded only where there is a device to use.
//
// libaccel links LibTorch's part for the CPU alone. LibTorch's CUDA library, which asks for a gigabyte of NVIDIA's, comes with
// this one, from the folder of the libtorch_cpu.so that the process has: two LibTorch in a process would not know each other.
//
// Threads:  one at a time.
// Cost:     a second, and some hundred MB of address space, at the first call that succeeds.
// Source:   tests/unit/libaccel/device/device_library_test.cc.
#pragma once

#include <filesystem>

#include <accel/env_contract.h>
#include <accel/result.h>

namespace accel::device {

class DeviceBackend;

// ACCEL_DEVICE_LIBRARY, else libaccel_cuda.so beside the file that this code is in, or in its folder `accel`.
[[nodiscard]] std::filesystem::path device_library_path(const EnvLookup& env);

// Loads it for the life of the process, after the libtorch_cuda.so beside the process's libtorch_cpu.so, where that can be loaded.
// Errors  kLibraryMissing: the loader's words: which file is missing; kUnsupported: it is of another version of accel, or no
// library of devices.
[[nodiscard]] Result<DeviceBackend*> load_device_backend(const std::filesystem::path& library);

}  // namespace accel::device
