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

// By GLOO_SOCKET_IFNAME of the environment, else towards the store of the ranks.
[[nodiscard]] Result<std::string> own_address(const std::string& store_host, int store_port);

}  // namespace accel::sharding
