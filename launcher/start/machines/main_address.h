// MainAddress: where machine 0 is, and on which of its addresses it listens.
//
// Threads:  pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/supervisor/kernel/tcp_table.h"

namespace accel::launcher {

// Where machine 0's store listens when the main process is called `name` and found at `found`: there,
// but a name of this machine may lead to a loopback address, which no other machine reaches. Then, and
// with `is_translated` (no interface has the address), on all addresses.
[[nodiscard]] std::string listening_address(const std::string& name,
                                            const supervisor::TcpEndpoint& found,
                                            bool is_translated);

// How machine 0 itself reaches a store that listens on the numeric `address`.
[[nodiscard]] supervisor::TcpEndpoint own_way_to(const std::string& address, std::uint16_t port);

}  // namespace accel::launcher
