#include "libaccel/engine/settings/variable_values.h"

#include <utility>

namespace accel::sharding {

std::optional<std::string> text_of(const EnvLookup& env, std::string_view name) {
  std::optional<std::string> text = env(name);
  if (text && text->empty()) text.reset();
  return text;
}

Error invalid_variable(std::string_view name, std::string_view value, const std::string& expected) {
  return Error(ErrorCode::kEnvInvalid,
               std::string(name) + " is '" + std::string(value) + "', expected " + expected);
}

std::optional<bool> flag_of(const EnvLookup& env, std::string_view name) {
  const auto text = text_of(env, name);
  if (!text) return std::nullopt;
  Result<bool> flag = parse_env_bool(name, *text);
  if (!flag) throw std::move(flag).error();
  return *flag;
}

}  // namespace accel::sharding
