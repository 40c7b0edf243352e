// TorchrunFlags: the flags that torchrun has and `accelerate launch` has not.
//
// PET_* variables are the defaults of torchrun's flags.
//
// Threads:  pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "launcher/flags/flag_spec.h"

namespace accel::launcher {

[[nodiscard]] std::span<const FlagSpec> torchrun_flags();

// All flags that PET_<NAME> gives a default for.
[[nodiscard]] std::span<const std::string_view> pet_flags();

// PET_<NAME> of a flag.
[[nodiscard]] std::string pet_variable(std::string_view flag);

}  // namespace accel::launcher
