// TpuFlags: the flags of launches on TPUs.
//
// Threads:  constant data.
#pragma once

#include <span>

#include "launcher/flags/flag_spec.h"

namespace accel::launcher {

[[nodiscard]] std::span<const FlagSpec> tpu_flags();

}  // namespace accel::launcher
