// FlagTable: every flag of accel-launch, once. The parser, --help and docs/flags.md read it.
//
// Names are written with underscores and stand for both spellings (`--num_processes`,
// `--num-processes`), as with `accelerate launch`.
//
// Threads:  constant data.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace accel::launcher {

enum class FlagKind {
  kSwitch,   // no value
  kInteger,  // a whole number
  kText,
  kChoice,   // one of `choices`
  kSeconds,  // a duration: 30, 0.5, 500ms, 2m
};

struct FlagSpec {
  std::string_view name;  // without dashes
  char short_name = 0;    // 0: none
  FlagKind kind = FlagKind::kSwitch;
  std::string_view value_name;  // "N"; empty for a switch
  std::string_view choices;     // "no,fp16"; kChoice only
  std::string_view group;       // heading in --help
  std::string_view help;        // one or two sentences; says the default
};

// In the order of --help; flags of one group are neighbours.
[[nodiscard]] std::span<const FlagSpec> flag_table();

// The entry called `name` (underscores), or nullptr.
[[nodiscard]] const FlagSpec* find_flag(std::string_view name);

// A flag of `accelerate launch` or torchrun that accel-launch does not have yet: the feature it
// belongs to ("FSDP"). Empty for any other name.
[[nodiscard]] std::string_view feature_not_built(std::string_view name);

[[nodiscard]] std::vector<std::string_view> split_choices(std::string_view choices);

// What --help prints: grouped, at most 80 columns, only the underscore forms.
[[nodiscard]] std::string launch_help();

}  // namespace accel::launcher
