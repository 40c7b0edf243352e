// FlagTable: every flag of accel-launch, once. The parser, --help and docs/reference/flags.md read it.
//
// Names are written with underscores and stand for both spellings (`--num_processes`,
// `--num-processes`), as with `accelerate launch`.
//
// Threads:  constant data.
#pragma once

#include <span>
#include <string_view>

#include "launcher/flags/flag_spec.h"

namespace accel::launcher {

// In the order of --help; flags of one group are neighbours.
[[nodiscard]] std::span<const FlagSpec> flag_table();

// The entry called `name` (underscores), or nullptr.
[[nodiscard]] const FlagSpec* find_flag(std::string_view name);

}  // namespace accel::launcher
