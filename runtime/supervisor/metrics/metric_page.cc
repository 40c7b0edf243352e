#include "runtime/supervisor/metrics/metric_page.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace accel::supervisor {
namespace {

using enum Metric;
using enum MetricType;

constexpr std::array kTable = {
    MetricInfo{kBuildInfo, "accel_build_info", kGauge, "version", "1, for the build that answers"},
    MetricInfo{
        kAgentDraining, "accel_agent_draining", kGauge, "", "1 while the node starts no jobs"},
    MetricInfo{kAgentJobs,
               "accel_agent_jobs",
               kGauge,
               "state",
               "jobs and parts of jobs of this node that accel status shows"},
    MetricInfo{kAgentSlots,
               "accel_agent_slots",
               kGauge,
               "",
               "workers that this node may run for jobs over several nodes"},
    MetricInfo{kAgentSlotsTaken,
               "accel_agent_slots_taken",
               kGauge,
               "",
               "slots that jobs on this node take"},
    MetricInfo{kAgentConnected,
               "accel_agent_coordinator_connected",
               kGauge,
               "",
               "1 while the agent has a session with the coordinator"},
    MetricInfo{kEventLoopLag,
               "accel_agent_event_loop_lag_seconds",
               kHistogram,
               "",
               "how late a timer of the agent's loop is, once a second"},
    MetricInfo{
        kAuditRefusals,
        "accel_audit_refusals_total",
        kCounter,
        "",
        "audit lines about what was refused or could not be kept, with those left out of the log"},
    MetricInfo{kConnectionsRefused,
               "accel_connections_refused_total",
               kCounter,
               "",
               "TCP connections beyond max_connections and max_connections_each"},
    MetricInfo{kCertificateEnd,
               "accel_tls_cert_expiry_timestamp_seconds",
               kGauge,
               "file",
               "when the certificate ends"},
    MetricInfo{kWorkerState,
               "accel_worker_state",
               kGauge,
               "job node state",
               "workers of the generation, running or ended"},
    MetricInfo{kWorkerStarts,
               "accel_worker_starts_total",
               kCounter,
               "job node",
               "workers that were started"},
    MetricInfo{kWorkerExits,
               "accel_worker_exits_total",
               kCounter,
               "job node cause",
               "workers that ended, by what ended them"},
    MetricInfo{kWorkerHeartbeatAge,
               "accel_worker_heartbeat_age_seconds",
               kGauge,
               "job node local_rank",
               "since the worker reported last"},
    MetricInfo{kWorkerStep,
               "accel_worker_step",
               kGauge,
               "job node local_rank",
               "the step that the worker reported last"},
    MetricInfo{kWorkerTimedSteps,
               "accel_worker_timed_steps_total",
               kCounter,
               "job node local_rank",
               "steps whose time the worker has measured (ACCEL_STEP_TIMES)"},
    MetricInfo{kWorkerStepTime,
               "accel_worker_step_time_seconds_total",
               kCounter,
               "job node local_rank part",
               "where the time of those steps went: compute, communication, input, io or wait"},
    MetricInfo{kWorkerStepSeconds,
               "accel_worker_step_seconds",
               kGauge,
               "job node local_rank",
               "how long a step of the worker took, between the last two looks at it"},
    MetricInfo{kWorkerStartDuration,
               "accel_worker_start_duration_seconds",
               kHistogram,
               "",
               "from the decision to start a generation on this node until all its workers run"},
    MetricInfo{kStopDuration,
               "accel_stop_duration_seconds",
               kHistogram,
               "",
               "from the first failure, or the order to stop, until nothing of the generation is "
               "left here"},
    MetricInfo{kRestartDuration,
               "accel_restart_duration_seconds",
               kHistogram,
               "",
               "from the failure of a worker until the next workers run; jobs on one node"},
    MetricInfo{kFailureDetection,
               "accel_failure_detection_seconds",
               kHistogram,
               "kind",
               "how long a rank was silent when it counted as hung"},
    MetricInfo{kJobRestarts,
               "accel_job_restarts_total",
               kCounter,
               "job cause",
               "restarts, by what ended the worker that failed first"},
    MetricInfo{kJobTime,
               "accel_job_time_seconds",
               kGauge,
               "job phase",
               "where the job's time went, as accel ledger; the phases add up to its age"},
    MetricInfo{kJobEffectiveRatio,
               "accel_job_effective_training_ratio",
               kGauge,
               "job",
               "productive time by the job's age"},
    MetricInfo{
        kGeneration, "accel_rendezvous_generation", kGauge, "job", "the generation of the job"},
    MetricInfo{kCoordinatorLeads,
               "accel_coordinator_leads",
               kGauge,
               "",
               "1 while this agent's coordinator decides"},
    MetricInfo{kLeaderEpoch,
               "accel_leader_epoch",
               kGauge,
               "",
               "the epoch of the coordinator that decides here"},
    MetricInfo{kSessions,
               "accel_agent_sessions",
               kGauge,
               "",
               "sessions of nodes with the coordinator here"},
    MetricInfo{kNodes,
               "accel_rendezvous_nodes",
               kGauge,
               "state",
               "nodes that the coordinator knows: lost, quarantined, drained, suspect or live, the "
               "first that is true"},
    MetricInfo{
        kCoordinatorJobs, "accel_coordinator_jobs", kGauge, "state", "jobs over several nodes"},
    MetricInfo{kStaleMessages,
               "accel_rendezvous_stale_messages_total",
               kCounter,
               "type",
               "messages that changed nothing, by the reason"},
    MetricInfo{kClockOffset,
               "accel_clock_offset_seconds",
               kGauge,
               "node",
               "the wall clock of the node minus that of the coordinator"},
    MetricInfo{kDashboardRefusals,
               "accel_dashboard_refusals_total",
               kCounter,
               "cause",
               "requests to the dashboard that were refused, and streams that were dropped"},
    MetricInfo{kProcessCpu,
               "process_cpu_seconds_total",
               kCounter,
               "",
               "processor time of the process that answers"},
    MetricInfo{kProcessMemory,
               "process_resident_memory_bytes",
               kGauge,
               "",
               "memory of the process that answers"},
    MetricInfo{
        kProcessOpenFds, "process_open_fds", kGauge, "", "open files of the process that answers"},
    MetricInfo{kProcessMaxFds, "process_max_fds", kGauge, "", "its limit of open files"},
    MetricInfo{kProcessStart, "process_start_time_seconds", kGauge, "", "when it was started"},
};

constexpr bool is_in_order() {
  for (std::size_t i = 0; i < kTable.size(); ++i) {
    if (kTable[i].metric != static_cast<Metric>(i)) return false;
  }
  return kTable.size() == static_cast<std::size_t>(kCount);
}
static_assert(is_in_order(), "a row for each metric, in the order of the enumeration");

const MetricInfo& info_of(Metric metric) {
  return kTable[static_cast<std::size_t>(metric)];
}

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  char text[32];
  const auto end = std::to_chars(std::begin(text), std::end(text), value).ptr;
  return {std::begin(text), end};
}

void append_escaped(std::string& text, std::string_view value) {
  for (const char c : value) {
    if (c == '\n') {
      text += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') text += '\\';
    text += c;
  }
}

// `job="a",node="b"`; empty without labels.
std::string label_text(const MetricInfo& info, std::initializer_list<std::string_view> values) {
  std::string text;
  std::string_view names = info.labels;
  for (const std::string_view value : values) {
    if (names.empty()) break;
    const std::size_t end = std::min(names.find(' '), names.size());
    if (!text.empty()) text += ',';
    text += names.substr(0, end);
    text += "=\"";
    append_escaped(text, value);
    text += '"';
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return text;
}

void append_line(std::string& text,
                 std::string_view name,
                 std::string_view suffix,
                 const std::string& labels,
                 double value) {
  text += name;
  text += suffix;
  if (!labels.empty()) text += '{' + labels + '}';
  text += ' ' + number(value) + '\n';
}

}  // namespace

std::span<const MetricInfo> metric_table() {
  return kTable;
}

std::string_view name_of(MetricType type) {
  switch (type) {
    case kGauge:
      return "gauge";
    case kCounter:
      return "counter";
    case kHistogram:
      return "histogram";
  }
  return "untyped";
}

double seconds_of(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

void DurationHistogram::observe(Duration took) {
  const double seconds = std::max(0.0, seconds_of(took));
  const auto bucket = std::lower_bound(kBounds.begin(), kBounds.end(), seconds);
  if (bucket != kBounds.end()) ++buckets_[static_cast<std::size_t>(bucket - kBounds.begin())];
  ++count_;
  sum_ += seconds;
}

std::uint64_t DurationHistogram::at_most(std::size_t i) const {
  std::uint64_t sum = 0;
  for (std::size_t bucket = 0; bucket <= i; ++bucket) sum += buckets_[bucket];
  return sum;
}

void MetricPage::add(Metric metric, std::initializer_list<std::string_view> labels, double value) {
  const MetricInfo& info = info_of(metric);
  const std::string key = label_text(info, labels);
  std::string line;
  append_line(line, info.name, "", key, value);
  families_[static_cast<std::size_t>(metric)][key] = std::move(line);
}

void MetricPage::add(Metric metric,
                     std::initializer_list<std::string_view> labels,
                     const DurationHistogram& histogram) {
  if (histogram.count() == 0) return;
  const MetricInfo& info = info_of(metric);
  const std::string key = label_text(info, labels);
  const std::string others = key.empty() ? "" : key + ',';
  std::string lines;
  for (std::size_t i = 0; i < DurationHistogram::kBounds.size(); ++i) {
    append_line(lines,
                info.name,
                "_bucket",
                others + "le=\"" + number(DurationHistogram::kBounds[i]) + '"',
                static_cast<double>(histogram.at_most(i)));
  }
  const auto count = static_cast<double>(histogram.count());
  append_line(lines, info.name, "_bucket", others + "le=\"+Inf\"", count);
  append_line(lines, info.name, "_sum", key, histogram.sum());
  append_line(lines, info.name, "_count", key, count);
  families_[static_cast<std::size_t>(metric)][key] = std::move(lines);
}

std::string MetricPage::text() const {
  std::string text;
  for (const MetricInfo& info : kTable) {
    const auto& samples = families_[static_cast<std::size_t>(info.metric)];
    if (samples.empty()) continue;
    const std::string name(info.name);
    text += "# HELP " + name + ' ' + std::string(info.help) + '\n';
    text += "# TYPE " + name + ' ' + std::string(name_of(info.type)) + '\n';
    for (const auto& [labels, lines] : samples) text += lines;
  }
  return text;
}

}  // namespace accel::supervisor
