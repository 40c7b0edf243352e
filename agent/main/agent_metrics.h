// AgentMetrics: what the agent knows, as metrics.
//
// Threads:  on the loop, but for add_host(); reads /proc of this process, nothing else.
// Cost:     O(jobs + workers + nodes).
// Source:   docs/reference/metrics.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/cluster/cluster_part.h"
#include "agent/jobs/job_runner.h"
#include "agent/tls/certificate_expiry.h"
#include "runtime/supervisor/dashboard/dashboard_state.h"
#include "runtime/supervisor/metrics/metric_page.h"

namespace accel::agent {

struct AgentMetrics {
  std::string version;
  std::string node_id;
  bool is_draining = false;
  supervisor::DurationTotals durations;
  supervisor::DurationHistogram loop_lag;
  std::uint64_t audit_refusals = 0;
  std::uint64_t connections_refused = 0;
  std::vector<CertificateEnd> certificates;                // as they were read last
  std::optional<supervisor::DashboardRefusals> dashboard;  // nullopt: there is none
};

// `cluster`: nullptr where this agent takes no part in jobs over several nodes. `page`: with what add_host() has put there.
[[nodiscard]] std::string write_metrics(const AgentMetrics& agent,
                                        const JobRunner& jobs,
                                        const ClusterPart* cluster,
                                        supervisor::MetricPage page);

// "lost", "quarantined", "drained", "suspect" or "live": the first that is true, so that the states add up to the nodes.
[[nodiscard]] std::string_view label_of(const Node& node, TimePoint now);

// What the coordinator knows; on its loop.
void add_host(supervisor::MetricPage& page, const CoordinatorHost& host);

// What the coordinator decides by.
void add_coordinator(supervisor::MetricPage& page, const State& state, TimePoint now);
}  // namespace accel::agent
