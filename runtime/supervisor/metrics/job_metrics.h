// JobMetrics: what the owner of a shim knows of its job, as metrics; the same families from an agent and from accel-launch.
//
// Threads:  pure functions.
// Cost:     O(workers).
// Source:   docs/reference/metrics.md.
#pragma once

#include <string>

#include "runtime/supervisor/metrics/job_counters.h"
#include "runtime/supervisor/metrics/ledger.h"
#include "runtime/supervisor/metrics/metric_page.h"

namespace accel::supervisor {

// Of the generation there are `num_all` workers here, of which `num_running` run.
void add_workers(MetricPage& page,
                 const std::string& job,
                 const std::string& node,
                 int num_running,
                 int num_all);

// What the job's shim told. The ages of heartbeats are those at `now`.
void add_counters(MetricPage& page,
                  const std::string& job,
                  const std::string& node,
                  const JobCounters& counters,
                  TimePoint now);

void add_restarts(MetricPage& page, const std::string& job, const JobCounters::ByCause& restarts);

// Requires: settled().
void add_ledger(MetricPage& page, const std::string& job, const LedgerState& ledger);

// What took how long, of all jobs.
void add_durations(MetricPage& page, const DurationTotals& durations);

}  // namespace accel::supervisor
