// SupervisorLink: what this process tells the supervisor that started it, when there is one.
//
// Connecting opens the worker channel that ACCEL_CHANNEL names and sets two things up: an exception
// that nobody catches leaves its text in the channel, so that the launcher's report can show it; and
// a request for stacks (Ctrl-\ at the launcher) makes every thread write its own to stderr.
//
// Threads:  any. beat() from one thread at a time.
// Cost:     nothing without a supervisor; with one, a sleeping thread and 20 ns a beat.
#pragma once

#include <accel/channel.h>
#include <accel/env_contract.h>

namespace accel::detail {

// Connects once; later calls do nothing. A child of the worker, which inherited the variable but not
// the descriptors, has no channel.
// Throws kChannelVersion when worker and supervisor are of different builds.
void connect_to_supervisor(const EnvLookup& env);

// nullptr without a supervisor.
[[nodiscard]] WorkerChannel* supervisor_channel() noexcept;

// One more backward pass is done: the supervisor learns that the job makes progress.
void beat(WorkerPhase phase = WorkerPhase::kTraining) noexcept;

}  // namespace accel::detail
