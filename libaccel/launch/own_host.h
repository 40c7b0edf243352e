// OwnHost: whether an address, or a name, is this machine's.
//
// Threads:  any; a name is looked up, which may take as long as its service.
#pragma once

#include <string>

namespace accel::launch {

// Whether it is this machine's name, or a socket can be bound to one of its addresses here. A name without any is nobody's,
// and so is 0.0.0.0: no other machine finds anybody there. One that the name service cannot look up at present may be ours.
[[nodiscard]] bool is_own_host(const std::string& host);

}  // namespace accel::launch
