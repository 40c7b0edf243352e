// Program: under which name the launcher was started, and how its messages write flags then.
//
// The same flags have two names: accel-launch speaks accelerate's ("--num_processes"), accel-torchrun
// torchrun's ("--nproc-per-node"). Both take both; a message writes the ones of its program. In code a
// flag is called by its FlagSpec::name.
//
// Threads:  pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace accel::launcher {

enum class Program { kLaunch, kTorchrun };

// "accel-launch", "accel-torchrun".
[[nodiscard]] std::string_view name_of(Program program);

// The program of that name; kLaunch for any other name.
[[nodiscard]] Program program_of(std::string_view name);

struct FlagNames {
  std::string_view torchrun;  // "nproc_per_node"
  std::string_view own;       // "num_processes"
};

// Flags that torchrun calls otherwise and that mean the same.
[[nodiscard]] std::span<const FlagNames> flags_of_two_names();

// "num_processes" as "--num_processes" or "--nproc-per-node".
[[nodiscard]] std::string spelled(std::string_view flag, Program program);

}  // namespace accel::launcher
