#include "launcher/flags/tpu_flags.h"

namespace accel::launcher {
namespace {

constexpr std::string_view kTpuGroup = "TPU (with --tpu)";

constexpr FlagSpec kTpuFlags[] = {
    {"tpu",
     0,
     FlagKind::kSwitch,
     "",
     "",
     kTpuGroup,
     "Start a function of a Python script on each core of the TPUs of this machine, by torch_xla."},
    {"main_training_function",
     0,
     FlagKind::kText,
     "NAME",
     "",
     kTpuGroup,
     "The function. Default: main."},
    {"downcast_bf16",
     0,
     FlagKind::kSwitch,
     "",
     "",
     kTpuGroup,
     "With --mixed_precision bf16: float becomes bfloat16 and double float; else both bfloat16."},
    {"tpu_cluster",
     0,
     FlagKind::kSwitch,
     "",
     "",
     kTpuGroup,
     "On all machines of a pod, through torch_xla's xla_dist. Needs --tpu_name."},
    {"no_tpu_cluster",
     0,
     FlagKind::kSwitch,
     "",
     "",
     kTpuGroup,
     "This machine alone, as by default."},
    {"tpu_name", 0, FlagKind::kText, "NAME", "", kTpuGroup, "The pod of --tpu_cluster."},
    {"tpu_use_sudo",
     0,
     FlagKind::kSwitch,
     "",
     "",
     kTpuGroup,
     "Use sudo on the machines of the pod."},
    {"vm",
     0,
     FlagKind::kText,
     "NAME",
     "",
     kTpuGroup,
     "A virtual machine of the pod; may be given several times. Default: its instance groups."},
    {"env",
     0,
     FlagKind::kText,
     "NAME=VALUE",
     "",
     kTpuGroup,
     "A variable for the machines of the pod; may be given several times."},
};

}  // namespace

std::span<const FlagSpec> tpu_flags() {
  return kTpuFlags;
}

}  // namespace accel::launcher
