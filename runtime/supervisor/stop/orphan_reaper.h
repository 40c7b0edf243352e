// OrphanReaper: reaps what falls to a process that starts shims for many jobs and is a subreaper.
//
// What a lost shim leaves has SIGKILL already and may have ended before any sweep sees it alive. Nobody waits for it then: it
// would stay a zombie as long as this process lives. The shims are children too, and their hosts want to learn how they ended.
// So a child that was not started by spawn_watched(), in a session that is not ours, is an orphan of a job.
//
// Threads:  any.
#pragma once

#include <chrono>

#include <sys/types.h>

#include "runtime/supervisor/spawn/spawner.h"
#include "runtime/system.h"

namespace accel::supervisor {

// spawn(), of a child that reap_orphans() leaves alone until forget_watched().
[[nodiscard]] SpawnResult spawn_watched(const SpawnRequest& request);
void forget_watched(pid_t child);

// Reaps orphans that have ended, and waits up to `limit` for those that are about to.
// Cost  one pass over /proc, and one each millisecond while it waits.
void reap_orphans(System& system, std::chrono::milliseconds limit);

}  // namespace accel::supervisor
