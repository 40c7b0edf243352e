// TorchrunTranslation: what torchrun's flags mean here.
//
// Most are other names: translate_torchrun() puts the launcher's own flag in their place, so that all that
// comes after it knows one name for each thing.
//
// Threads:  pure functions, but for the counts that a view asks for.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <accel/env_contract.h>

#include "launcher/config/config_file.h"
#include "launcher/flags/flags.h"
#include "launcher/text/faults.h"

namespace accel::launcher {

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
