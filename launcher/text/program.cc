#include "launcher/text/program.h"

#include <algorithm>

namespace accel::launcher {
namespace {

constexpr std::string_view kLaunchName = "accel-launch";
constexpr std::string_view kTorchrunName = "accel-torchrun";

constexpr FlagNames kFlagNames[] = {
    {.torchrun = "nproc_per_node", .own = "num_processes"},
    {.torchrun = "node_rank", .own = "machine_rank"},
    {.torchrun = "master_addr", .own = "main_process_ip"},
    {.torchrun = "master_port", .own = "main_process_port"},
};

// torchrun's --nnodes is a range too, which --num_machines is not: one way only.
std::string_view name_for_torchrun(std::string_view flag) {
  if (flag == "num_machines") return "nnodes";
  const auto* const found = std::ranges::find(kFlagNames, flag, &FlagNames::own);
  return found == std::end(kFlagNames) ? flag : found->torchrun;
}

}  // namespace

std::string_view name_of(Program program) {
  return program == Program::kTorchrun ? kTorchrunName : kLaunchName;
}

Program program_of(std::string_view name) {
  return name == kTorchrunName ? Program::kTorchrun : Program::kLaunch;
}

std::span<const FlagNames> flags_of_two_names() {
  return kFlagNames;
}

std::string spelled(std::string_view flag, Program program) {
  if (program == Program::kLaunch) return "--" + std::string(flag);
  std::string name(name_for_torchrun(flag));
  std::replace(name.begin(), name.end(), '_', '-');
  return "--" + name;
}

}  // namespace accel::launcher
