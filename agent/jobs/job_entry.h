// JobRunner::Entry: what the runner knows of one job; private to job_runner.cc and job_recovery.cc.
#pragma once

#include <boost/asio/io_context.hpp>

#include "accel/v1/record.pb.h"
#include "agent/jobs/job_runner.h"
#include "agent/shims/shim_link.h"
#include "runtime/supervisor/metrics/job_accounts.h"
#include "runtime/supervisor/metrics/job_counters.h"
#include "runtime/supervisor/metrics/job_timeline.h"

namespace accel::agent {

struct JobRunner::Entry {
  explicit Entry(boost::asio::io_context& context) : shim(context) {}

  [[nodiscard]] v1::Job& job() { return *record.mutable_job(); }
  [[nodiscard]] const v1::Job& job() const { return record.job(); }

  v1::JobRecord record;  // as on the disk, or newer
  supervisor::JobAccounts accounts;
  supervisor::JobCounters counters;
  supervisor::JobTimeline timeline;
  int num_looks = 0;             // snapshots that were asked for to see steps, and have not come
  bool is_record_lost = false;   // it could not be written; said once
  bool has_unsent_stop = false;  // asked for before the shim was taken over
  bool may_owe_stop = false;     // the agent before may have ended before it told the shim
  ShimLink shim;                 // closed when the job has ended
};

}  // namespace accel::agent
