// VariableValues: variables of the environment as values. One that is empty counts as not set.
//
// Threads:  pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <accel/env_contract.h>

namespace accel::sharding {

[[nodiscard]] std::optional<std::string> text_of(const EnvLookup& env, std::string_view name);
// Throws kEnvInvalid naming a variable that is neither true nor false.
[[nodiscard]] std::optional<bool> flag_of(const EnvLookup& env, std::string_view name);

}  // namespace accel::sharding
