#include "libaccel/engine/sharding/device_limits.h"

#include <string>

#include <accel/error.h>

namespace accel::sharding {
namespace {

[[noreturn]] void refuse_here(const std::string& what,
                              const std::string& why,
                              const std::string& remedy) {
  throw Error(ErrorCode::kUnsupported,
              what + " cannot be used where a model is divided over GPUs: " + why,
              remedy + ", or launch with --cpu");
}

void refuse_offload(const FsdpSettings& settings) {
  const auto asks = [](const std::string& device) { return device != "none"; };
  if (asks(settings.offload_param_device) || !settings.parameter_folder.empty()) {
    refuse_here(
        "offload of parameters (cpu_offload, offload_param_device, offload_param_nvme_path)",
        "nothing is moved between a GPU and the host or a disk",
        "leave it out, and use FULL_SHARD or ZeRO-3");
  }
  if (asks(settings.offload_optimizer_device) || !settings.optimizer_folder.empty()) {
    refuse_here(
        "offload of optimizer states (offload_optimizer_device, offload_optimizer_nvme_path)",
        "nothing is moved between a GPU and the host or a disk",
        "leave it out: each rank has its part of the states");
  }
}

}  // namespace

void refuse_on_device(c10::Device device, const FsdpSettings& settings, const Mesh& mesh) {
  if (device.is_cpu()) return;
  refuse_offload(settings);
  if (mesh.size(MeshAxis::kReplicate) > 1) {
    refuse_here("HYBRID_SHARD, or dp_replicate_size above 1",
                "copies that are divided each have not been tried with NCCL's groups",
                "use FULL_SHARD or SHARD_GRAD_OP over all ranks");
  }
}

}  // namespace accel::sharding
