// HostName: what this machine calls itself.
//
// Threads:  any one.
#pragma once

#include <climits>
#include <string>

#include <unistd.h>

namespace accel {

// Of this machine; "localhost" when it has none.
[[nodiscard]] inline std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  return ::gethostname(name, HOST_NAME_MAX) == 0 && *name != '\0' ? name : "localhost";
}

}  // namespace accel
