// TcpListener: a listening socket under the store's port rule.
//
// Threads:  free of state.
#pragma once

#include <cstdint>
#include <string>

#include <accel/result.h>

#include "runtime/supervisor/kernel/tcp_table.h"
#include "runtime/supervisor/protocol/job_spec.h"
#include "runtime/unique_fd.h"

namespace accel::supervisor {

struct TcpListener {
  UniqueFd socket;       // close-on-exec, non-blocking
  TcpEndpoint endpoint;  // with the port that it really has
};

// Listens on policy.port; when that is taken and the user did not name it, on any free port.
//
// Errors  kPortInUse naming the holder when /proc tells; kUnsupported for a port that needs a right
//         which is missing; kInvalidArgument for an address that is not numeric or not of this
//         machine; kInternal with the errno.
[[nodiscard]] Result<TcpListener> listen_tcp(const StorePolicy& policy);

// The same without listening, until listen_tcp() of this or another process does: as long as the socket is there the port
// is chosen for nobody, and taken by none but those who share it (SO_REUSEADDR) while nobody listens.
//
// Errors  as listen_tcp().
[[nodiscard]] Result<TcpListener> reserve_tcp(const StorePolicy& policy);

}  // namespace accel::supervisor
