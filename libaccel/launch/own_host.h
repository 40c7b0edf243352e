// OwnHost: whether an address, or a name, is this machine's.
//
// Threads:  any; a name is looked up, which may take as long as its service.
#pragma once

#include <string>

namespace accel::launch {

// Whether a socket can be bound to one of the host's addresses here. A name without any is nobody's.
[[nodiscard]] bool is_own_host(const std::string& host);

}  // namespace accel::launch
