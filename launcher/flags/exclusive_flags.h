// ExclusiveFlags: the flags that give a launch to one way of starting workers, of which a launch has one.
//
// Threads:  pure functions.
#pragma once

#include <string>
#include <string_view>

#include "launcher/flags/flags.h"

namespace accel::launcher {

// The first of them that is given, as "--use_fsdp", but for `own`; empty: none.
[[nodiscard]] std::string first_exclusive_flag(const CommandLine& line, std::string_view own = {});

}  // namespace accel::launcher
