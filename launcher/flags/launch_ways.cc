#include "launcher/flags/launch_ways.h"

namespace accel::launcher {
namespace {

constexpr std::string_view kWays[] = {"multi_gpu",
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

std::string flag_of_other_way(const CommandLine& line, std::string_view own) {
  for (const std::string_view way : kWays) {
    if (way != own && line.has(way)) return "--" + std::string(way);
  }
  return "";
}

}  // namespace accel::launcher
