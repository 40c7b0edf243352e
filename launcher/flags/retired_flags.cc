#include "launcher/flags/retired_flags.h"

namespace accel::launcher {
namespace {

constexpr std::string_view kTensorParallel =
    "has no effect: give --use_fsdp --fsdp_version 2 --use_parallelism_config "
    "--parallelism_config_tp_size N";

constexpr RetiredFlag kRetiredFlags[] = {
    {"fsdp_backward_prefetch_policy",
     true,
     "fsdp_backward_prefetch",
     "is an older name: the flag is --fsdp_backward_prefetch"},
    {"ipex", false, "", "has no effect: IPEX is part of PyTorch now"},
    {"use_xpu", false, "", "has no effect: XPUs are found by the workers"},
    {"use_mps_device", false, "", "has no effect: the device is found by the workers"},
    {"mpirun_ccl", true, "", "has no effect: set CCL_WORKER_COUNT for workers that use oneCCL"},
    {"use_tp", false, "", kTensorParallel},
    {"tp_size", true, "", kTensorParallel},
};

}  // namespace

std::span<const RetiredFlag> retired_flags() {
  return kRetiredFlags;
}

}  // namespace accel::launcher
