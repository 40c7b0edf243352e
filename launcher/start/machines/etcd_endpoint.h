// EtcdEndpoint: the address of etcd, as a user writes it.
//
// Threads:  a pure function.
#pragma once

#include <string>

namespace accel::launcher {

// "HOST:PORT" of "HOST" or "HOST:PORT": etcd's own port, 2379, unless there is one.
[[nodiscard]] std::string etcd_endpoint(std::string text);

}  // namespace accel::launcher
