// EnvironmentGuard of the launchers: their variables keep the names that the program gave them.
//
// Threads:  as accel/environment.h.
#pragma once

#include <map>
#include <string>

#include <accel/environment.h>

namespace accel::launch {

// As patch_environment(), without its upper case. Errors  kInvalidArgument: a name that is empty or has a '='.
[[nodiscard]] EnvironmentGuard set_variables(const std::map<std::string, std::string>& variables);

}  // namespace accel::launch
