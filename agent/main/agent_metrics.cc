#include "agent/main/agent_metrics.h"

#include <algorithm>

#include "agent/jobs/job_state.h"
#include "runtime/supervisor/metrics/job_metrics.h"
#include "runtime/supervisor/metrics/process_metrics.h"

namespace accel::agent {
namespace {

using supervisor::JobCounters;
using supervisor::Metric;
using supervisor::MetricPage;
using supervisor::seconds_of;

void add_jobs(MetricPage& page,
              const std::string& node,
              const JobRunner& jobs,
              std::map<std::string, int>& states,
              TimePoint now) {
  for (const v1::Job* job : jobs.all()) {
    const std::string& id = job->job_id();
    ++states[job_state_word(job->state())];
    const auto& workers = job->workers();
    const auto num_running = std::count_if(
        workers.begin(), workers.end(), [](const auto& worker) { return worker.pid() > 0; });
    add_workers(page, id, node, static_cast<int>(num_running), workers.size());
    const JobCounters& counters = jobs.counters_of(*job);
    add_counters(page, id, node, counters, now);
    add_restarts(page, id, counters.restarts());
    add_ledger(page, id, jobs.ledger_of(*job));
    page.add(Metric::kGeneration, {id}, static_cast<double>(job->generation()));
  }
}

void add_parts(MetricPage& page,
               const std::string& node,
               const NodeJobs& parts,
               std::map<std::string, int>& states,
               TimePoint now) {
  for (const auto& part : parts.parts()) {
    const std::string& id = part->spec.job_id();
    const bool runs = part->workers && !part->workers->pids().empty();
    ++states[part->has_ended ? "ended" : runs ? "running" : "pending"];
    int num_running = 0;
    int num_all = 0;
    if (runs) {
      for (const std::int64_t pid : part->workers->pids()) num_running += pid > 0 ? 1 : 0;
      num_all = static_cast<int>(part->workers->pids().size());
    }
    add_workers(page, id, node, num_running, num_all);
    add_counters(page, id, node, part->counters, now);
  }
}

void add_agent(MetricPage& page, const AgentMetrics& agent) {
  page.add(Metric::kBuildInfo, {agent.version}, 1);
  page.add(Metric::kAgentDraining, {}, agent.is_draining ? 1 : 0);
  page.add(Metric::kEventLoopLag, {}, agent.loop_lag);
  page.add(Metric::kAuditRefusals, {}, static_cast<double>(agent.audit_refusals));
  page.add(Metric::kConnectionsRefused, {}, static_cast<double>(agent.connections_refused));
  for (const CertificateEnd& end : agent.certificates) {
    const std::chrono::duration<double> since_epoch = end.not_after.time_since_epoch();
    page.add(Metric::kCertificateEnd, {end.path}, since_epoch.count());
  }
  add_durations(page, agent.durations);
  if (agent.dashboard) add_refusals(page, *agent.dashboard);
}

}  // namespace

std::string_view label_of(const Node& node, TimePoint now) {
  if (node.liveness == Liveness::kLost) return "lost";
  if (node.quarantine.until > now) return "quarantined";
  if (node.is_drained) return "drained";
  return node.liveness == Liveness::kSuspect ? "suspect" : "live";
}

void add_coordinator(MetricPage& page, const State& state, TimePoint now) {
  page.add(Metric::kLeaderEpoch, {}, static_cast<double>(state.epoch));
  // All of them, so that a state that nobody is in any more is seen to be empty.
  std::map<std::string_view, int> nodes = {
      {"live", 0}, {"suspect", 0}, {"drained", 0}, {"quarantined", 0}, {"lost", 0}};
  for (const auto& [id, node] : state.nodes) ++nodes[label_of(node, now)];
  for (const auto& [label, count] : nodes) page.add(Metric::kNodes, {label}, count);

  std::map<JobPhase, int> phases;
  for (const auto& [uuid, job] : state.jobs) {
    ++phases[job.phase];
    const std::string& id = job.description->job_id;
    page.add(Metric::kGeneration, {id}, static_cast<double>(job.generation));
    add_restarts(page, id, job.restarts_by_cause);
    add_ledger(page, id, settled(job.ledger, now));
  }
  for (int phase = 0; phase <= static_cast<int>(JobPhase::kCancelled); ++phase) {
    const auto each = static_cast<JobPhase>(phase);
    page.add(Metric::kCoordinatorJobs, {name_of(each)}, phases[each]);
  }

  const DropCounts& dropped = state.dropped;
  const std::pair<std::string_view, std::uint64_t> counts[] = {
      {"lower_epoch", dropped.lower_epoch},
      {"lower_generation", dropped.lower_generation},
      {"unknown_session", dropped.unknown_session},
      {"lost_session", dropped.lost_session},
      {"repeated", dropped.repeated},
      {"early", dropped.early},
      {"old_beat", dropped.old_beat}};
  for (const auto& [type, count] : counts)
    page.add(Metric::kStaleMessages, {type}, static_cast<double>(count));
}

void add_host(MetricPage& page, const CoordinatorHost& host) {
  page.add(Metric::kCoordinatorLeads, {}, host.is_leading() ? 1 : 0);
  page.add(Metric::kSessions, {}, host.num_sessions());
  if (!host.is_leading()) return;
  add_coordinator(page, host.state(), SteadyClock().now());
  for (const auto& [node, offset] : host.clock_offsets())
    page.add(Metric::kClockOffset, {node}, seconds_of(offset));
}

std::string write_metrics(const AgentMetrics& agent,
                          const JobRunner& jobs,
                          const ClusterPart* cluster,
                          MetricPage page) {
  const TimePoint now = SteadyClock().now();
  add_agent(page, agent);
  add_process(page);
  std::map<std::string, int> states;
  // First those over several nodes: where a name was used again, the job of now has the word.
  const NodeJobs* parts = cluster == nullptr ? nullptr : cluster->node();
  int taken = jobs.slots_taken();
  if (parts != nullptr) {
    page.add(Metric::kAgentConnected, {}, parts->is_connected() ? 1 : 0);
    page.add(Metric::kAgentSlots, {}, parts->options().node.slots);
    for (const auto& part : parts->parts()) taken += part->workers ? part->num_ranks : 0;
    add_parts(page, agent.node_id, *parts, states, now);
  }
  page.add(Metric::kAgentSlotsTaken, {}, taken);
  add_jobs(page, agent.node_id, jobs, states, now);
  for (const auto& [state, count] : states) page.add(Metric::kAgentJobs, {state}, count);
  return page.text();
}

}  // namespace accel::agent
