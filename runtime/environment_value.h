// EnvironmentValue: what a variable of an environment says.
#pragma once

#include <string>

#include <accel/env_contract.h>

namespace accel {

// Empty when it is not set.
[[nodiscard]] inline std::string value_in(const EnvMap& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

}  // namespace accel
