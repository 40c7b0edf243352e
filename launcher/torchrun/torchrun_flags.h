// TorchrunFlags: the flags that torchrun has and `accelerate launch` has not, and what they mean here.
//
// Most are other names: translate_torchrun() puts the launcher's own flag in their place, so that all that
// comes after it knows one name for each thing. PET_* variables are the defaults of torchrun's flags.
//
// Threads:  pure functions, but for the counts that a view asks for.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <accel/env_contract.h>

#include "launcher/config_file.h"
#include "launcher/faults.h"
#include "launcher/flag_spec.h"
#include "launcher/flags.h"

namespace accel::launcher {

[[nodiscard]] std::span<const FlagSpec> torchrun_flags();

// All flags that PET_<NAME> gives a default for.
[[nodiscard]] std::span<const std::string_view> pet_flags();

// PET_<NAME> of a flag.
[[nodiscard]] std::string pet_variable(std::string_view flag);

// "--num_machines", or the file's path: what says in the words of `accelerate launch` how many machines there are, which one
// this is or where they meet; empty when nothing does.
[[nodiscard]] std::string who_places_machines(const CommandLine& line, const ConfigFile* file);

struct TorchrunView {
  const EnvMap& environment;
  std::function<int()> num_gpus;
  std::function<int()> num_cpus;     // hardware threads that are granted
  bool is_torchrun = false;          // started as accel-torchrun
  const ConfigFile* file = nullptr;  // decides what no flag says
  std::string
      placed_by;  // who_places_machines(), by what the user typed: PET_* about machines do not count
};

// Flags that do nothing here become notices; what contradicts itself, or cannot be done, faults
// (kUsage, kInvalidArgument, kUnsupported).
void translate_torchrun(CommandLine& line,
                        const TorchrunView& view,
                        std::vector<std::string>& notices,
                        Faults& faults);

}  // namespace accel::launcher
