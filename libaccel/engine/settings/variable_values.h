// VariableValues: variables of the environment as values. One that is empty counts as not set.
//
// Threads:  pure functions.
#pragma once

#include <charconv>
#include <optional>
#include <string>
#include <string_view>

#include <accel/env_contract.h>
#include <accel/error.h>

namespace accel::sharding {

[[nodiscard]] std::optional<std::string> text_of(const EnvLookup& env, std::string_view name);

// kEnvInvalid: "NAME is 'VALUE', expected ...".
[[nodiscard]] Error invalid_variable(std::string_view name,
                                     std::string_view value,
                                     const std::string& expected);

// Nothing when it is not set. Throws invalid_variable().
template <typename Number>
[[nodiscard]] std::optional<Number> number_of(const EnvLookup& env,
                                              std::string_view name,
                                              const char* expected) {
  const auto text = text_of(env, name);
  if (!text) return std::nullopt;
  Number number{};
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error == std::errc() && end == text->data() + text->size()) return number;
  throw invalid_variable(name, *text, expected);
}
// Throws kEnvInvalid naming a variable that is neither true nor false.
[[nodiscard]] std::optional<bool> flag_of(const EnvLookup& env, std::string_view name);

}  // namespace accel::sharding
