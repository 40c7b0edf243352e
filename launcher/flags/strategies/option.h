// Option: one setting of a training strategy (FSDP, DeepSpeed, Megatron-LM, ...): its flag, its key in
// configuration files and the variable that tells the workers, in one row.
//
// Every strategy is a table of options (fsdp.cc, deepspeed.cc, ...). The parser, --help, the reader of
// configuration files, the workers' environment and the documents are made from the tables.
//
// Threads:  constant data.
// Source:   the variables and their formats are those of `accelerate launch` 1.15.0, compared with it
//           by tests/peer/launch_options.py.
#pragma once

#include <span>
#include <string_view>

#include "launcher/flags/flag_spec.h"

namespace accel::launcher {

// How a truth value is written into the variable, and with kTyped a choice too; other values are written as Python's str() does.
enum class TruthForm {
  kLower,   // true, false
  kPython,  // True, False
  kDigit,   // 1, 0 from a flag; True, False from a file
  kTyped,   // as it was typed; True, False from a file
};

struct Option {
  FlagSpec flag;
  std::string_view variable;  // empty: it concerns the launcher alone
  std::string_view fallback;  // the variable when nobody says anything; empty: not set
  TruthForm truth = TruthForm::kLower;
  bool is_lowered = false;  // the variable's value in small letters
  int least = 0;            // kInteger and kNumber: the smallest value
  std::string_view
      old_names;  // keys and flags of other versions, separated by commas, that mean it

  [[nodiscard]] constexpr Option at_least(int number) const {
    Option copy = *this;
    copy.least = number;
    return copy;
  }
  [[nodiscard]] constexpr Option lowered() const {
    Option copy = *this;
    copy.is_lowered = true;
    return copy;
  }
  [[nodiscard]] constexpr Option once_called(std::string_view names) const {
    Option copy = *this;
    copy.old_names = names;
    return copy;
  }
  // A number that may be one of `words` in its place.
  [[nodiscard]] constexpr Option or_word(std::string_view words) const {
    Option copy = *this;
    copy.flag.choices = words;
    return copy;
  }
};

// Makes the rows of one table.
struct OptionMaker {
  std::string_view group;
  TruthForm truth;

  [[nodiscard]] constexpr Option make(FlagKind kind,
                                      std::string_view name,
                                      std::string_view value_name,
                                      std::string_view choices,
                                      std::string_view variable,
                                      std::string_view fallback,
                                      std::string_view help) const {
    return {.flag = {name, 0, kind, value_name, choices, group, help},
            .variable = variable,
            .fallback = fallback,
            .truth = truth};
  }
  [[nodiscard]] constexpr Option boolean(std::string_view name,
                                         std::string_view variable,
                                         std::string_view fallback,
                                         std::string_view help) const {
    return make(FlagKind::kBool, name, "true|false", "", variable, fallback, help);
  }
  [[nodiscard]] constexpr Option integer(std::string_view name,
                                         std::string_view variable,
                                         std::string_view fallback,
                                         std::string_view help) const {
    return make(FlagKind::kInteger, name, "N", "", variable, fallback, help);
  }
  [[nodiscard]] constexpr Option number(std::string_view name,
                                        std::string_view variable,
                                        std::string_view fallback,
                                        std::string_view help) const {
    return make(FlagKind::kNumber, name, "X", "", variable, fallback, help);
  }
  [[nodiscard]] constexpr Option text(std::string_view name,
                                      std::string_view value_name,
                                      std::string_view variable,
                                      std::string_view help) const {
    return make(FlagKind::kText, name, value_name, "", variable, "", help);
  }
  [[nodiscard]] constexpr Option choice(std::string_view name,
                                        std::string_view choices,
                                        std::string_view variable,
                                        std::string_view fallback,
                                        std::string_view help) const {
    return make(FlagKind::kChoice, name, "NAME", choices, variable, fallback, help);
  }
};

struct Strategy {
  std::string_view name;      // "FSDP"
  FlagSpec chooser;           // --use_fsdp; no name: chosen in another way
  std::string_view variable;  // "true" when chosen; may be empty
  std::string_view section;   // the map in configuration files: "fsdp_config"
  std::string_view prefix;    // of its keys, may be left out there: "fsdp_"
  std::span<const Option> options;
  bool hands_on_other_keys = false;  // a key that no option has becomes ACCELERATE_<KEY>
};

[[nodiscard]] const Strategy& fsdp_strategy();
[[nodiscard]] const Strategy& deepspeed_strategy();
[[nodiscard]] const Strategy& megatron_strategy();
[[nodiscard]] const Strategy& parallelism_strategy();
[[nodiscard]] const Strategy& fp8_strategy();

// In the order of --help.
[[nodiscard]] std::span<const Strategy* const> strategies();

// The option whose flag, or a name of other versions, is `name`; nullptr when there is none.
[[nodiscard]] const Option* find_option(const Strategy& strategy, std::string_view name);

}  // namespace accel::launcher
