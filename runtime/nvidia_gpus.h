// NvidiaGpus: the NVIDIA GPUs of this machine as the kernel driver and the PCI bus show them, without loading CUDA.
//
// Threads:  functions without state.
// Cost:     a few small files of /proc and /sys for each GPU; nothing where there is no driver.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <accel/env_contract.h>

namespace accel {

struct NvidiaGpu {
  std::string name;         // "NVIDIA GeForce RTX 4090"
  std::string pci_address;  // "0000:01:00.0"
  std::vector<int>
      cpus;  // of the memory node it hangs on, ascending; empty when the machine does not say
};

struct NvidiaMachine {
  std::string driver_version;   // "535.129.03"; empty without a driver
  std::vector<NvidiaGpu> gpus;  // in the order of their addresses, which is that of nvidia-smi
};

// proc: /proc/driver/nvidia; another folder for tests, as is `pci` for /sys/bus/pci/devices. What cannot be read is left
// out.
[[nodiscard]] NvidiaMachine read_nvidia_machine(const std::string& proc = "/proc/driver/nvidia",
                                                const std::string& pci = "/sys/bus/pci/devices");

// "535.129.03" of the first line of /proc/driver/nvidia/version; empty when there is none.
[[nodiscard]] std::string driver_version_in(std::string_view text);

// 0,1,2,3,8 of "0-3,8"; empty for anything else.
[[nodiscard]] std::vector<int> parse_cpu_list(std::string_view text);

// Whether GPUs of this kind hang or fail when they speak to each other directly: more than one, one of them a
// GeForce of the 40 series, and a driver before 550.40.07.
[[nodiscard]] bool lacks_peer_access(const NvidiaMachine& machine);

// What NCCL has to be told there: NCCL_P2P_DISABLE=1 and NCCL_IB_DISABLE=1, each unless `environment` has the variable.
// Empty on all other machines.
[[nodiscard]] EnvMap peer_access_variables(const NvidiaMachine& machine, const EnvMap& environment);

// The GPU that CUDA calls `index` under CUDA_VISIBLE_DEVICES; null when there is none, or it is named by something else
// than its number.
[[nodiscard]] const NvidiaGpu* visible_gpu(const NvidiaMachine& machine,
                                           const EnvMap& environment,
                                           int index);

}  // namespace accel
