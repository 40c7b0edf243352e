#include "libaccel/launch/environment_guard.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <utility>

#include <accel/error.h>

#include "runtime/own_environment.h"
#include "runtime/text/letter_case.h"

namespace accel {
EnvironmentGuard::EnvironmentGuard(std::map<std::string, std::optional<std::string>> before,
                                   std::optional<std::string> prefix)
    : before_(std::move(before)), prefix_(std::move(prefix)) {}

EnvironmentGuard::EnvironmentGuard(EnvironmentGuard&& other) noexcept
    : before_(std::move(other.before_)),
      prefix_(std::move(other.prefix_)),
      is_active_(std::exchange(other.is_active_, false)) {}

EnvironmentGuard::~EnvironmentGuard() {
  if (!is_active_) return;
  if (prefix_) {
    for (const auto& [name, value] : own_environment()) {
      if (name.starts_with(*prefix_) && !before_.contains(name)) ::unsetenv(name.c_str());
    }
  }
  for (const auto& [name, value] : before_) {
    if (value) {
      ::setenv(name.c_str(), value->c_str(), 1);
    } else {
      ::unsetenv(name.c_str());
    }
  }
}

EnvironmentGuard launch::set_variables(const std::map<std::string, std::string>& variables) {
  std::map<std::string, std::optional<std::string>> before;
  for (const auto& [name, value] : variables) {
    if (name.empty() || name.find('=') != std::string::npos) {
      throw Error(ErrorCode::kInvalidArgument,
                  "'" + name + "' cannot be the name of a variable",
                  "give a name without '='");
    }
    const char* current = std::getenv(name.c_str());
    before[name] = current == nullptr ? std::nullopt : std::optional<std::string>(current);
  }
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  return {std::move(before), std::nullopt};
}

EnvironmentGuard patch_environment(const std::map<std::string, std::string>& variables) {
  std::map<std::string, std::string> named;
  for (const auto& [given, value] : variables) named[uppercase(given)] = value;
  return launch::set_variables(named);
}

EnvironmentGuard clear_environment() {
  std::map<std::string, std::optional<std::string>> before;
  for (const auto& [name, value] : own_environment()) before[name] = value;
  ::clearenv();
  return {std::move(before), ""};
}

EnvironmentGuard purge_accelerate_environment() {
  const std::string prefix = "ACCELERATE_";
  std::map<std::string, std::optional<std::string>> before;
  for (const auto& [name, value] : own_environment()) {
    if (name.starts_with(prefix)) before[name] = value;
  }
  return {std::move(before), prefix};
}

}  // namespace accel
