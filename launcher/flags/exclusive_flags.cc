#include "launcher/flags/exclusive_flags.h"

namespace accel::launcher {
namespace {

constexpr std::string_view kExclusiveFlags[] = {"multi_gpu",
                                                "tpu",
                                                "use_deepspeed",
                                                "use_fsdp",
                                                "use_megatron_lm",
                                                "agent",
                                                "nnodes",
                                                "standalone",
                                                "rdzv_endpoint",
                                                "mpirun_hostfile"};

}  // namespace

std::string first_exclusive_flag(const CommandLine& line, std::string_view own) {
  for (const std::string_view way : kExclusiveFlags) {
    if (way != own && line.has(way)) return "--" + std::string(way);
  }
  return "";
}

}  // namespace accel::launcher
