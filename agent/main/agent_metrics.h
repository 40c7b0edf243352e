// AgentMetrics: what the agent knows, as metrics.
//
// Threads:  on the loop, but for add_host(); reads /proc of this process, nothing else.
// Cost:     O(jobs + workers + nodes).
// Source:   docs/reference/metrics.md.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "agent/cluster/cluster_part.h"
#include "agent/jobs/job_runner.h"
#include "agent/metrics/metric_page.h"
#include "agent/tls/certificate_expiry.h"

namespace accel::agent {

struct AgentMetrics {
  std::string version;
  std::string node_id;
  bool is_draining = false;
  DurationTotals durations;
  DurationHistogram loop_lag;
  std::uint64_t audit_refusals = 0;
  std::uint64_t connections_refused = 0;
  std::vector<CertificateEnd> certificates;  // as they were read last
};

// `cluster`: nullptr where this agent takes no part in jobs over several nodes. `page`: with what add_host() has put there.
[[nodiscard]] std::string write_metrics(const AgentMetrics& agent,
                                        const JobRunner& jobs,
                                        const ClusterPart* cluster,
                                        MetricPage page);

// What the coordinator knows; on its loop.
void add_host(MetricPage& page, const CoordinatorHost& host);

// What the coordinator decides by.
void add_coordinator(MetricPage& page, const State& state, TimePoint now);

// What a job's shim told.
void add_counters(MetricPage& page,
                  const std::string& job,
                  const std::string& node,
                  const JobCounters& counters,
                  TimePoint now);

}  // namespace accel::agent
