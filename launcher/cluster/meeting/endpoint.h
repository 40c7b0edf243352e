// Endpoint: where a coordinator listens, from what a user wrote to an address that answers.
//
// "10.0.0.7:29400", "[fd00::7]:29400" or "gpu-01:29400". A name may mean several addresses, some of them of no use (the
// machine's own loopback entry, an interface that others do not reach): whoever connects tries them in turn, whoever
// hosts by name listens on all interfaces.
//
// Threads:  any; resolve_endpoint() and first_reachable() block for as long as they say.
// Source:   fault 48 of docs/reference/faults.md.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include <accel/result.h>

#include "launcher/system/name_lookup.h"
#include "runtime/supervisor/kernel/tcp_endpoint.h"

namespace accel::cluster {

using supervisor::TcpEndpoint;
using supervisor::to_text;

// At most `limit` for a name; the look-up itself goes on behind it when it hangs. Errors  kInvalidArgument: no
// HOST:PORT; kRendezvousTimeout: the name is not known, or there was no answer in time.
[[nodiscard]] Result<std::vector<TcpEndpoint>> resolve_endpoint(
    const std::string& text,
    std::chrono::milliseconds limit,
    const launcher::Resolver& resolver = launcher::system_resolver());

// Whether the text names a machine instead of one of its addresses; "localhost" is an address.
[[nodiscard]] bool is_by_name(std::string_view text);

// Whether it is an address of this machine with nobody at its port yet, also when we have no right to listen there.
[[nodiscard]] bool is_ours_and_free(const TcpEndpoint& endpoint);

// The first that takes a connection, each within `limit`. The answer may come later by the limit of one address.
[[nodiscard]] std::optional<TcpEndpoint> first_reachable(std::span<const TcpEndpoint> endpoints,
                                                         std::chrono::milliseconds limit,
                                                         const std::stop_token& stop);

// The address by which other nodes reach this machine, as far as one can tell: that from which packets to `endpoint`
// leave; when that is loopback although the endpoint is not meant to be, that of the default route.
[[nodiscard]] std::string own_address_towards(const TcpEndpoint& endpoint, bool is_local);

// Of this machine's interfaces that are up, that of the default route first, loopback left out unless there is no other.
[[nodiscard]] std::vector<std::string> own_addresses();
// The same with a port: "10.0.0.7:29400".
[[nodiscard]] std::vector<std::string> own_endpoints(int port);

}  // namespace accel::cluster
