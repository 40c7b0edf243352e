// AliveWorkers: how many workers of a job run.
//
// Threads:  pure.
#pragma once

#include "accel/v1/control.pb.h"

namespace accel::cluster {

// Of a job of many nodes: the workers of the nodes that are there.
[[nodiscard]] inline unsigned num_alive(const v1::Job& job) {
  unsigned count = 0;
  for (const v1::Worker& worker : job.workers()) count += worker.pid() > 0 ? 1 : 0;
  if (job.state() != v1::JOB_STATE_RUNNING) return count;
  for (const v1::JobNode& node : job.nodes()) count += node.is_gone() ? 0 : node.count();
  return count;
}

}  // namespace accel::cluster
