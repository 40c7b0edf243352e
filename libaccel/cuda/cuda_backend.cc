// CudaBackend: NVIDIA GPUs, by LibTorch's CUDA library and NCCL. The one source that sees their headers.
//
// LibTorch looks for its CUDA library once, when a program first asks for anything of CUDA (a seed for all generators does), and what it
// does not find then stays away for the life of the process. count() says so.

#include <string>

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#ifdef USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include <accel/error.h>

#include "libaccel/engine/device/device_backend.h"

namespace accel::device {
namespace {

class CudaBackend final : public DeviceBackend {
 public:
  [[nodiscard]] c10::DeviceType type() const noexcept override { return c10::DeviceType::CUDA; }

  [[nodiscard]] int count() override {
    const int count = c10::cuda::device_count_ensure_non_zero();
    if (at::detail::getCUDAHooks().hasCUDA()) return count;
    throw Error(ErrorCode::kUnsupported,
                "the program asked LibTorch for CUDA before libaccel loaded it, as a seed for all "
                "generators does: make the Accelerator or PartialState first");
  }

  [[nodiscard]] std::string place_of(int index) override {
    char place[32] = "";
    C10_CUDA_CHECK(cudaDeviceGetPCIBusId(place, sizeof place, index));
    return place;
  }

  void select(int index) override { c10::cuda::set_device(static_cast<c10::DeviceIndex>(index)); }

#ifdef USE_C10D_NCCL
  [[nodiscard]] std::string why_no_connection() const override {
    return {};
  }

  [[nodiscard]] c10::intrusive_ptr<c10d::Backend> connect(
      const c10::intrusive_ptr<c10d::Store>& store, const DeviceRank& rank) override {
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = rank.timeout;
    auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(
        store, rank.rank, rank.world_size, std::move(options));
    // Now, and not in the first step: what NCCL refuses is an error of the set-up.
    group->eagerConnectSingleDevice(
        at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(rank.device)));
    return group;
  }
#else
  [[nodiscard]] std::string why_no_connection() const override {
    return "libaccel_cuda.so was built without NCCL";
  }

  [[nodiscard]] c10::intrusive_ptr<c10d::Backend> connect(
      const c10::intrusive_ptr<c10d::Store>& /*store*/, const DeviceRank& /*rank*/) override {
    throw Error(ErrorCode::kUnsupported, why_no_connection());
  }
#endif
};

}  // namespace
}  // namespace accel::device

extern "C" {
__attribute__((visibility("default"))) int accel_device_interface() {
  return accel::device::kDeviceInterface;
}

__attribute__((visibility("default"))) accel::device::DeviceBackend* accel_device_backend() {
  static accel::device::CudaBackend backend;
  return &backend;
}
}
