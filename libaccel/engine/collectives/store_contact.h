// StoreContact: waits until the key-value store of a job answers, before c10d's client is let loose
// on it.
//
// c10d's client prints each failed try, and says at the end neither how long it waited nor what to
// do. So the first contact is made here: name, connection and greeting are tried until the time is
// over, in silence, and one error tells the endpoint, the time and what the last try met.
//
// Threads:  any; blocks.
// Source:   the greeting is VALIDATE and PING of c10d's protocol
// (runtime/supervisor/store/store_protocol.h).
#pragma once

#include <chrono>
#include <string>

#include <accel/error.h>

#include "runtime/unique_fd.h"

namespace accel {

// The connection that was answered; keep it until c10d's client has its own, so that no server takes
// it for one that came and went.
// Errors  kStoreUnreachable: nothing answered within `timeout`, or what answered is no such store.
[[nodiscard]] UniqueFd contact_store(const std::string& host,
                                     int port,
                                     std::chrono::milliseconds timeout);

}  // namespace accel
