// HeardWorkers: the workers of a job on one node, as its record shows them after what its shim has said.
//
// A shim runs as the job's user and may say anything: ranks that the job has not change nothing, and texts are made printable.
// How many workers it may speak of is ShimLink's to see to.
//
// Threads:  pure functions.
#pragma once

#include <accel/result.h>

#include "accel/v1/control.pb.h"
#include "runtime/supervisor/metrics/job_counters.h"
#include "runtime/supervisor/protocol/frames.h"

namespace accel::agent {

// `is_stopping`: somebody has asked for its end.
void show_started(v1::Job& job, const supervisor::GenerationStarted& started, bool is_stopping);
void show_standing(v1::Job& job, const supervisor::Snapshot& snapshot, bool is_stopping);
// As the last snapshot showed them.
void show_steps(v1::Job& job, const supervisor::JobCounters& counters);
void show_exit(v1::Job& job, const supervisor::WorkerExit& exit);
// The job has ended.
void show_outcome(v1::Job& job, const supervisor::JobOutcome& outcome, bool is_stopping);
void show_loss(v1::Job& job, const Error& error);

}  // namespace accel::agent
