// OwnAddress: under which address ranks of other nodes reach this one.
//
// As Gloo chooses: the interface that GLOO_SOCKET_IFNAME names (the first of several), else the address from which this
// node speaks to the host where the job's store is.
//
// Threads:  functions without state.
#pragma once

#include <string>

#include <accel/result.h>

namespace accel::sharding {

// Numeric, IPv4 or IPv6. Errors  kEnvInvalid: no such interface, or it has no address; kProcessGroup: the host is not
// known, or there is no way to it.
[[nodiscard]] Result<std::string> address_of_interface(const std::string& interface);
[[nodiscard]] Result<std::string> address_towards(const std::string& host, int port);

// By the environment: GLOO_SOCKET_IFNAME, else MASTER_ADDR and MASTER_PORT (127.0.0.1 without them).
[[nodiscard]] Result<std::string> own_address();

}  // namespace accel::sharding
