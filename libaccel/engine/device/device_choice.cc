#include "libaccel/engine/device/device_choice.h"

#include <algorithm>
#include <array>
#include <exception>
#include <string_view>

#include <c10/util/Exception.h>
#include <unistd.h>

#include <accel/error.h>

#include "libaccel/engine/device/device_backend.h"
#include "runtime/text/first_line.h"

namespace accel::device {
namespace {

constexpr const char* kDeviceVariable = "ACCELERATE_TORCH_DEVICE";
constexpr const char* kToCpu =
    "to train on the CPU, launch with --cpu, or set ACCELERATE_USE_CPU=1 or AcceleratorOptions.cpu";

// Devices that Accelerate knows for Python; of them LibTorch has no library that a C++ program could load.
constexpr std::array<std::string_view, 10> kForPythonAlone = {
    "mps", "xpu", "npu", "mlu", "musa", "hpu", "sdaa", "xla", "neuron", "mtia"};

// Of "cuda:1". Throws kEnvInvalid, kUnsupported.
c10::Device device_named(const std::string& name) {
  const std::string kind = name.substr(0, name.find(':'));
  if (std::find(kForPythonAlone.begin(), kForPythonAlone.end(), kind) != kForPythonAlone.end()) {
    throw Error(
        ErrorCode::kUnsupported,
        std::string(kDeviceVariable) + " asks for " + name +
            ": libaccel computes on CPUs and NVIDIA GPUs, and LibTorch has no library for " + kind,
        "start a Python worker for it, or set " + std::string(kDeviceVariable) + " to cpu or cuda");
  }
  try {
    c10::Device device(name);
    if (device.is_cpu() || device.is_cuda()) return device;
  } catch (const c10::Error&) {
    throw Error(ErrorCode::kEnvInvalid,
                std::string(kDeviceVariable) + " is '" + name + "', which names no device",
                "set it to cpu or cuda:0, or unset it");
  }
  throw Error(
      ErrorCode::kUnsupported,
      std::string(kDeviceVariable) + " asks for " + name + ", on which libaccel cannot train",
      "set it to cpu or cuda:0, or unset it");
}

// Throws kUnsupported. whose: what asks for the device.
DeviceBackend& load_or_refuse(const std::string& whose, const LoadDevices& load) {
  auto loaded = load();
  if (loaded) return **loaded;
  throw Error(
      ErrorCode::kUnsupported,
      whose + ", and libaccel cannot use GPUs here: " + loaded.error().message(),
      std::string("install libaccel_cuda.so and LibTorch with CUDA (the wheel torch==2.11.0 "
                  "with its nvidia wheels); ") +
          kToCpu);
}

int count_or_refuse(const std::string& whose, DeviceBackend& backend) {
  try {
    return backend.count();
  } catch (const std::exception& cause) {
    throw Error(ErrorCode::kUnsupported,
                whose + ", and CUDA cannot use any: " + first_line(cause.what()),
                std::string("see `nvidia-smi`; ") + kToCpu);
  }
}

}  // namespace

DeviceChoice choose_device(const DeviceQuestion& question, const LoadDevices& load) {
  std::optional<c10::Device> named;
  if (question.named && !question.named->empty()) named = device_named(*question.named);
  const bool wants_gpu =
      named ? named->is_cuda() : !question.is_for_cpu && !question.visible_gpu.empty();
  if (!wants_gpu) return {};
  const std::string whose =
      named ? std::string(kDeviceVariable) + " asks for " + *question.named
            : "this machine has GPUs (the first is " + question.visible_gpu + ")";
  DeviceBackend& backend = load_or_refuse(whose, load);
  const int count = count_or_refuse(whose, backend);
  const int index = named && named->has_index() ? named->index() : question.local_rank % count;
  if (index >= count) {
    throw Error(ErrorCode::kEnvInvalid,
                std::string(kDeviceVariable) + " asks for " + *question.named +
                    ", and this process sees " + std::to_string(count) + " GPUs",
                "set it to a number below that, or look at CUDA_VISIBLE_DEVICES");
  }
  backend.select(index);
  return {.device = {backend.type(), static_cast<c10::DeviceIndex>(index)}, .backend = &backend};
}

std::string visible_gpu_name(const NvidiaMachine& machine,
                             const EnvMap& environment,
                             const std::string& device_file) {
  if (const NvidiaGpu* const first = visible_gpu(machine, environment, 0)) return first->name;
  if (::access(device_file.c_str(), F_OK) != 0) return {};
  const auto visible = environment.find("CUDA_VISIBLE_DEVICES");
  if (visible == environment.end())
    return machine.driver_version.empty() ? "known by " + device_file : "";
  const std::string& first = visible->second;
  const bool is_uuid = first.starts_with("GPU-") || first.starts_with("MIG-");
  if (is_uuid) return first.substr(0, first.find(','));
  const bool is_number = !first.empty() && first.front() >= '0' && first.front() <= '9';
  return machine.driver_version.empty() && is_number ? "known by " + device_file : "";
}

}  // namespace accel::device
