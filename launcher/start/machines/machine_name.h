// MachineName: what a launcher calls itself towards the others.
//
// Threads:  functions without state.
#pragma once

#include <string>

namespace accel::launcher {

// Of this machine; "localhost" when it has none.
[[nodiscard]] std::string own_host_name();

// 32 hexadecimal digits, drawn.
[[nodiscard]] std::string draw_launcher_id();

}  // namespace accel::launcher
