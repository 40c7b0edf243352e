// FlagSpec: what is known of one flag; the tables of flags are made of these rows.
//
// Threads:  constant data.
#pragma once

#include <string_view>

namespace accel::launcher {

enum class FlagKind {
  kSwitch,   // no value
  kBool,     // true or false, in the words of parse_env_bool()
  kInteger,  // a whole number
  kNumber,   // a number, a fraction too
  kText,
  kChoice,   // one of `choices`
  kSeconds,  // a duration: 30, 0.5, 500ms, 2m
};

struct FlagSpec {
  std::string_view name;  // without dashes
  char short_name = 0;    // 0: none
  FlagKind kind = FlagKind::kSwitch;
  std::string_view value_name;  // "N"; empty for a switch
  std::string_view choices;     // "no,fp16"; of a number: words that may stand in its place
  std::string_view group;       // heading in --help
  std::string_view help;        // one or two sentences; says the default
};

}  // namespace accel::launcher
