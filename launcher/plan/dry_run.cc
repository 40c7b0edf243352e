#include "launcher/plan/dry_run.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "launcher/text/shell_word.h"
#include "runtime/supervisor/logs/log_layout.h"

namespace accel::launcher {
namespace {

using supervisor::JobSpec;
using supervisor::Streams;
using supervisor::WorkerSpec;

std::string seconds(supervisor::Milliseconds time) {
  const auto ms = time.count();
  return ms % 1000 == 0 ? std::to_string(ms / 1000) + " s" : std::to_string(ms) + " ms";
}

void append_row(std::string& out, std::string_view label, const std::string& text) {
  constexpr size_t kLabelWidth = 12;
  out += label;
  out.append(label.size() < kLabelWidth ? kLabelWidth - label.size() : 1, ' ');
  out += text;
  out += '\n';
}

std::string number_text(const ElasticSettings& nodes) {
  return (nodes.min_nodes == nodes.max_nodes ? "" : std::to_string(nodes.min_nodes) + " to ") +
         std::to_string(nodes.max_nodes);
}

std::string elastic_nodes_text(const ElasticSettings& nodes) {
  std::string text = number_text(nodes);
  for (const std::string& host : nodes.expected_hosts)
    text += (&host == &nodes.expected_hosts.front() ? ": " : ", ") + host;
  switch (nodes.meeting) {
    case Meeting::kEndpoint:
      return text + ", which meet at " + nodes.endpoint;
    case Meeting::kAgent:
      return text + ", which the agents choose";
    case Meeting::kStarter:
      return text + "; SLURM starts a launcher on each";
    case Meeting::kHostNode:
    case Meeting::kNode:
      break;
  }
  return text + "; this one is " + nodes.node_id +
         (nodes.node_index < 0 ? "" : ", number " + std::to_string(nodes.node_index));
}

// Variables that are decided when the nodes meet.
std::set<std::string_view> decided_later(const LaunchPlan& plan) {
  const auto* nodes = std::get_if<ElasticSettings>(&plan.start);
  if (nodes == nullptr) return {};
  std::set<std::string_view> names = {"MASTER_ADDR", "MASTER_PORT"};
  const bool is_range = nodes->min_nodes != nodes->max_nodes;
  const bool is_placed = nodes->node_index >= 0 || nodes->meeting == Meeting::kStarter;
  if (is_range) names.insert({"WORLD_SIZE", "ROLE_WORLD_SIZE", "GROUP_WORLD_SIZE"});
  if (is_range || !is_placed) names.insert({"RANK", "ROLE_RANK", "GROUP_RANK"});
  return names;
}

// The part of this node when all nodes come and take the places that they would like; of a starter, which is no node,
// that of the first one.
JobSpec placed(const LaunchPlan& plan) {
  JobSpec spec = plan.spec;
  const auto* nodes = std::get_if<ElasticSettings>(&plan.start);
  if (nodes == nullptr) return spec;
  const int num_workers = spec.identity.local_world_size;
  spec.identity.num_nodes = nodes->max_nodes;
  spec.identity.node_rank = std::max(nodes->node_index, 0);
  spec.identity.world_size = spec.identity.num_nodes * num_workers;
  for (WorkerSpec& worker : spec.workers)
    worker.global_rank = spec.identity.node_rank * num_workers + worker.local_rank;
  return spec;
}

std::string store_text(const LaunchPlan& plan) {
  const JobSpec& spec = plan.spec;
  if (std::holds_alternative<ElasticSettings>(plan.start))
    return "on one of the nodes, at a port that is free there when they meet";
  if (const auto* machines = std::get_if<MachinesSettings>(&plan.start)) {
    return "of machine 0 of " + std::to_string(machines->num_machines) +
           (machines->etcd ? ", which is the first of them in etcd at " + machines->etcd->endpoint
                           : ", at " + machines->address + ":" + std::to_string(machines->port));
  }
  if (!spec.store.enabled) return "none: one process needs no rendezvous";
  const std::string where = spec.store.bind_address + ":";
  if (spec.store.port == 0) return where + "any free port";
  return where + std::to_string(spec.store.port) +
         (spec.store.exact_port ? "" : ", or any free port when it is taken");
}

std::string stream_names(Streams streams) {
  switch (streams) {
    case Streams::kOut:
      return "stdout";
    case Streams::kErr:
      return "stderr";
    case Streams::kAll:
      return "stdout and stderr";
    case Streams::kNone:
      break;
  }
  return "nothing";
}

std::string worker_name(const WorkerSpec& worker, bool has_rank) {
  return has_rank ? "rank " + std::to_string(worker.global_rank)
                  : "local rank " + std::to_string(worker.local_rank);
}

void append_workers(std::string& out, const LaunchPlan& plan, const JobSpec& spec, bool has_rank) {
  for (const WorkerSpec& worker : spec.workers) {
    const auto index = static_cast<size_t>(worker.local_rank);
    out += worker_name(worker, has_rank) + "\n";
    append_row(out, "  command", shell_words(worker.argv));
    std::string cores = worker.cpus.empty() ? "all that are granted" : format_cpu_list(worker.cpus);
    if (index < plan.shares.size() && plan.shares[index].numa_node) {
      cores += " (memory node " + std::to_string(*plan.shares[index].numa_node) + ")";
    }
    append_row(out, "  cpus", cores);
    if (worker.tee != Streams::kNone || worker.redirect != Streams::kNone) {
      const supervisor::LogLayout layout(spec.log.dir, spec.job_id);
      append_row(out, "  logs", layout.worker_folder(worker.local_rank, 0).string());
      if (worker.tee != Streams::kNone) {
        append_row(out, "", stream_names(worker.tee) + " to file and console");
      }
      if (worker.redirect != Streams::kNone) {
        append_row(out, "", stream_names(worker.redirect) + " to file only");
      }
    }
  }
}

// What a worker sees beside what the caller already has.
EnvMap seen_environment(const JobSpec& spec, const WorkerSpec& worker) {
  EnvMap env = spec.env;
  for (const auto& [name, value] : worker.env) env[name] = value;
  WorkerIdentity identity = spec.identity;
  identity.global_rank = worker.global_rank;
  identity.local_rank = worker.local_rank;
  for (const auto& [name, value] : render_worker_env(identity, spec.env_mode)) env[name] = value;
  return env;
}

void append_environment(std::string& out,
                        const LaunchPlan& plan,
                        const JobSpec& spec,
                        const std::set<std::string_view>& later) {
  const WorkerSpec& first = spec.workers.front();
  out +=
      "environment of " + worker_name(first, !later.contains("RANK")) + ", beside the caller's\n";
  const EnvMap env = seen_environment(spec, first);
  for (const auto& [name, value] : env) {
    if (later.contains(name)) {
      out += "  " + name + " is decided when the nodes meet\n";
      continue;
    }
    const auto before = plan.inherited.find(name);
    if (before != plan.inherited.end() && before->second == value) continue;
    out += "  " + name + "=" + shell_word(value) + "\n";
  }
  for (const auto& [name, value] : plan.inherited) {
    if (env.count(name) == 0) out += "  " + name + " is removed\n";
  }
}

}  // namespace

std::string render_dry_run(const LaunchPlan& plan) {
  const JobSpec spec = placed(plan);
  const auto later = decided_later(plan);
  std::string out;
  append_row(out, "job", spec.job_id);
  if (const auto* nodes = std::get_if<ElasticSettings>(&plan.start))
    append_row(out, "nodes", elastic_nodes_text(*nodes));
  append_row(out, "workers", std::to_string(spec.workers.size()));
  append_row(out, "config", plan.config_file.empty() ? "none" : plan.config_file);
  append_row(out, "store", store_text(plan));
  append_row(out, "restarts", "at most " + std::to_string(spec.restart.max_restarts));
  append_row(out,
             "stopping",
             seconds(spec.stop.grace) + " from the signal to SIGKILL, " +
                 seconds(spec.stop.linger) + " for what a rank leaves behind");
  for (const auto& check : spec.preflight) {
    append_row(out,
               "preflight",
               check.name + ": " + check.argv.back() + " (" + seconds(check.limit) + " at most)");
  }
  append_row(out,
             "terminal",
             spec.console.foreground ? "rank 0 has this one"
             : spec.console.use_pty  ? "rank 0 gets a pseudo terminal"
                                     : "none");
  append_workers(out, plan, spec, !later.contains("RANK"));
  append_environment(out, plan, spec, later);
  return out;
}

}  // namespace accel::launcher
