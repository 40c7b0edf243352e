// launch_by_etcd: accel-launch on one of several machines that learn from etcd which of them is machine 0.
//
// Threads:  as launch_machines(); gRPC has some of its own.
// Source:   tests/integration/machines/etcd.py.
#pragma once

#include <accel/result.h>

#include "launcher/start/machines/run/machines_launch.h"

namespace accel::launcher {

// Meets the others, then does launch_machines(). Requires: options.settings.etcd.
//
// Errors  those of meet_by_etcd() and launch_machines(); kClusterMissing; kTls, kInvalidArgument: how etcd is
//         reached; kPortInUse.
[[nodiscard]] Result<MachinesEnding> launch_by_etcd(MachinesLaunchOptions options,
                                                    NoticeQueue& notices);

}  // namespace accel::launcher
