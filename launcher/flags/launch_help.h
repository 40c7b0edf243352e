// LaunchHelp: what `accel-launch --help` and `accel-torchrun --help` print, made from the table of flags.
//
// There are about 170 flags. `--help` shows the groups that everybody needs, and those that the line chooses (--use_fsdp); it
// names the others. `--help GROUP` shows one of them, `--help all` every flag.
//
// Threads:  pure functions.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace accel::launcher {

// Names of flags, with what was given as their values.
using GivenFlags = std::map<std::string, std::string, std::less<>>;

// At most 80 columns, only the underscore forms. For accel-torchrun with its name and defaults.
//
// given  the flags beside --help. One chooses its group, and that which is "(with ...)" it: "FSDP (with --use_fsdp)"
// topic  "all", or the word of a group: "nodes", "fsdp". Any other word is a script, and counts for nothing
[[nodiscard]] std::string launch_help(const GivenFlags& given = {},
                                      std::string_view topic = {},
                                      bool is_torchrun = false);

// The word by which `--help GROUP` knows a group of flags, as "fsdp" for "FSDP (with --use_fsdp)". Requires: a group of the
// tables.
[[nodiscard]] std::string_view topic_of(std::string_view group);

}  // namespace accel::launcher
