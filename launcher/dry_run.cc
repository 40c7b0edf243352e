#include "launcher/dry_run.h"

#include <string_view>

#include "launcher/shell_word.h"
#include "runtime/supervisor/log_layout.h"

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

std::string store_text(const LaunchPlan& plan) {
  const JobSpec& spec = plan.spec;
  if (plan.machines) {
    return "of machine 0 of " + std::to_string(plan.machines->num_machines) + ", at " +
           plan.machines->address + ":" + std::to_string(plan.machines->port);
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

void append_workers(std::string& out, const LaunchPlan& plan) {
  for (const WorkerSpec& worker : plan.spec.workers) {
    const auto index = static_cast<size_t>(worker.local_rank);
    out += "rank " + std::to_string(worker.global_rank) + "\n";
    append_row(out, "  command", shell_words(worker.argv));
    std::string cores = worker.cpus.empty() ? "all that are granted" : format_cpu_list(worker.cpus);
    if (index < plan.shares.size() && plan.shares[index].numa_node) {
      cores += " (memory node " + std::to_string(*plan.shares[index].numa_node) + ")";
    }
    append_row(out, "  cpus", cores);
    if (worker.tee != Streams::kNone || worker.redirect != Streams::kNone) {
      const supervisor::LogLayout layout(plan.spec.log.dir, plan.spec.job_id);
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
EnvMap environment_of(const JobSpec& spec, const WorkerSpec& worker) {
  EnvMap env = spec.env;
  for (const auto& [name, value] : worker.env) env[name] = value;
  WorkerIdentity identity = spec.identity;
  identity.global_rank = worker.global_rank;
  identity.local_rank = worker.local_rank;
  for (const auto& [name, value] : render_worker_env(identity, spec.env_mode)) env[name] = value;
  return env;
}

void append_environment(std::string& out, const LaunchPlan& plan) {
  out += "environment of rank 0, beside the caller's\n";
  const EnvMap env = environment_of(plan.spec, plan.spec.workers.front());
  for (const auto& [name, value] : env) {
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
  const JobSpec& spec = plan.spec;
  std::string out;
  append_row(out, "job", spec.job_id);
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
  append_workers(out, plan);
  append_environment(out, plan);
  return out;
}

}  // namespace accel::launcher
