// OptionValue: from what a flag or a file says of an option to the text of its variable.
//
// Threads:  pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "launcher/documents/config_document.h"
#include "launcher/flags/strategies/option.h"

namespace accel::launcher {

// std::nullopt: the value does not fit the option. A switch that is on is "true".
[[nodiscard]] std::optional<std::string> value_of_flag(const Option& option, std::string_view text);

// Lists are joined by commas where the option is a text. Requires a value that is not null.
[[nodiscard]] std::optional<std::string> value_in_file(const Option& option,
                                                       const ConfigValue& value);

// "true or false", "one of FULL_SHARD, NO_SHARD", for a message about a value that does not fit.
[[nodiscard]] std::string expected_value(const Option& option);

// A value of a file as Python's str() writes it; std::nullopt for null, lists and maps.
[[nodiscard]] std::optional<std::string> python_text(const ConfigValue& value);

// As Python's repr() of a float: 1.0, 0.0001, 1e-05.
[[nodiscard]] std::string python_number(double number);

}  // namespace accel::launcher
