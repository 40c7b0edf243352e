#include "libaccel/sharding/variable_values.h"

#include <utility>

#include <accel/error.h>

namespace accel::sharding {

std::optional<std::string> text_of(const EnvLookup& env, std::string_view name) {
  std::optional<std::string> text = env(name);
  if (text && text->empty()) text.reset();
  return text;
}

std::optional<bool> flag_of(const EnvLookup& env, std::string_view name) {
  const auto text = text_of(env, name);
  if (!text) return std::nullopt;
  Result<bool> flag = parse_env_bool(name, *text);
  if (!flag) throw std::move(flag).error();
  return *flag;
}

}  // namespace accel::sharding
