// LaunchRegistry: the functions that a program executed again as a worker can be asked for by name.
//
// Threads:  filled before main(), by one thread; read later by any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace accel::launch {

using PlainFunction = void (*)();

// Null when there is none.
[[nodiscard]] PlainFunction find_function(std::string_view name);

// Empty when it was not registered.
[[nodiscard]] std::string name_of(PlainFunction function);

// For messages, sorted.
[[nodiscard]] std::vector<std::string> registered_names();

}  // namespace accel::launch
