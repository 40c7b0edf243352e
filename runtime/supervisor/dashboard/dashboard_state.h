// DashboardState: what a dashboard shows at one moment, and its JSON.
//
// The figures are those of /metrics and of the Control service: both are made of the same counters, accounts and records, in the
// same look at the shims. What does not fit in the page's memory for long is bounded: kMostEvents of each job.
//
// Texts may come from a user's programs: they are printable(), and the page shows them as text.
//
// Threads:  plain values, pure functions.
// Cost:     O(ranks + nodes + events); 64 ranks and 200 nodes are 40 KB.
// Source:   docs/guides/dashboard.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/supervisor/metrics/job_counters.h"
#include "runtime/supervisor/metrics/job_timeline.h"
#include "runtime/supervisor/metrics/ledger.h"

namespace accel::supervisor {

struct DashboardRank {
  int rank = 0;
  int local_rank = 0;
  std::string node;
  std::int64_t pid = 0;         // 0: not running
  std::string end;              // the cause, as in the metrics; empty: it runs, or nobody knows
  bool reports = false;         // it has told its steps; what follows counts then alone
  std::uint64_t step = 0;       // the last one
  double silent_seconds = 0;    // since then
  double seconds_per_step = 0;  // lately; 0: not known yet
};

struct DashboardJob {
  std::string id;
  std::string uuid;
  std::string user;
  std::string state;   // as `accel status` calls it
  std::string reason;  // of its end; empty while it runs
  std::uint64_t generation = 0;
  std::uint64_t restarts = 0;
  LedgerState ledger;  // settled()
  bool has_ledger = true;
  std::vector<DashboardRank> ranks;
  std::vector<JobTimeline::Event> events;  // the oldest first
  bool has_logs = false;                   // there are files of its output
  bool has_curves = false;                 // it is known where its trackers write
};

struct DashboardNode {
  std::string id;
  std::string state;     // "live", "suspect", "drained", "quarantined", "lost"
  std::string endpoint;  // where its agent listens; empty: not known
  std::uint64_t slots = 0;
};

// What was refused or dropped since the server began.
struct DashboardRefusals {
  std::uint64_t unauthenticated = 0;  // no token, or another one
  std::uint64_t cross_site = 0;       // asked for by a page of another origin
  std::uint64_t wrong_host = 0;       // the Host header is a name that is not ours
  std::uint64_t forbidden = 0;        // an action with a viewer's token
  std::uint64_t dropped = 0;          // a stream whose client did not read
};

struct DashboardState {
  std::string program;  // "accel-agent", "accel-launch"
  std::string version;
  std::string node;
  std::string notice;       // what is missing, and why
  double wall_seconds = 0;  // since 1970, for texts
  bool is_over = false;     // no more will come
  bool is_drained = false;  // the node starts no more jobs
  std::vector<DashboardJob> jobs;
  std::vector<DashboardNode> nodes;
  DashboardRefusals refusals;
};

// One line.
[[nodiscard]] std::string to_json(const DashboardState& state);

// By the table of metrics: accel_dashboard_refusals_total.
void add_refusals(MetricPage& page, const DashboardRefusals& refusals);

// The rank of a worker that runs and has reported, by what its shim said.
void add_sight(DashboardRank& rank, const JobCounters::Sight& sight, TimePoint now);

}  // namespace accel::supervisor
