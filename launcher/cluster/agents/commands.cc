#include "launcher/cluster/agents/commands.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>
#include <google/protobuf/util/time_util.h>
#include <unistd.h>

#include "agent/jobs/job_state.h"
#include "launcher/agent_commands/agent_commands.h"
#include "launcher/cluster/agents/agent_client.h"
#include "launcher/cluster/agents/alive_workers.h"
#include "launcher/cluster/agents/answers.h"
#include "launcher/cluster/agents/followed_job.h"
#include "launcher/cluster/agents/inspection.h"
#include "launcher/cluster/agents/job_list.h"
#include "launcher/cluster/agents/patience.h"
#include "launcher/cluster/agents/rank_choice.h"
#include "launcher/cluster/agents/run_request.h"
#include "launcher/cluster/agents/top_command.h"
#include "launcher/cluster/agents/top_terminal.h"
#include "launcher/flags/command_parser.h"
#include "launcher/run/notice_line.h"
#include "runtime/printable.h"

namespace accel::cluster {
namespace {

using Flags = launcher::AgentFlags;

// With a coordinator that is away, as when another agent is being elected.
Patience patience_of(const Flags& flags) {
  return Patience(std::chrono::milliseconds(static_cast<std::int64_t>(flags.wait * 1000)));
}

Result<v1::Job> find_job(const AgentClient& client, const Flags& flags, bool with_steps = false) {
  v1::JobRef ref;
  ref.set_job(flags.job);
  ref.set_with_steps(with_steps);
  return call_patiently(client, &v1::Control::Stub::GetJob, ref, patience_of(flags));
}

// ---- run ----

// Stays with the job until it ends.
int follow(const AgentClient& client, const Flags& flags, const v1::JobSpec& spec) {
  const auto job = submit_and_follow(client, spec, patience_of(flags), [](const v1::Job&) {});
  if (!job) return fail(job.error());
  if (flags.json) {
    print_json(*job);
  } else if (const std::string text = ending_text(*job); !text.empty()) {
    std::fprintf(stderr, "%s: %s", kProgram, text.c_str());
  }
  return job->exit_code();
}

int run(const AgentClient& client, const Flags& flags) {
  const auto spec = requested_job(flags.run);
  if (!spec) return fail(spec.error());
  if (!flags.detach) return follow(client, flags, *spec);
  const auto job = submit_patiently(client, *spec, patience_of(flags));
  if (!job) return fail(job.error());
  if (flags.json) {
    print_json(*job);
  } else {
    std::printf("%s\n", job->job_id().c_str());
  }
  return 0;
}

// ---- the other commands ----

void print_row(const v1::Job& job) {
  std::printf("%-40s %-10s %-12s %5s %7u %8u %5s\n",
              job.job_id().c_str(),
              agent::job_state_word(job.state()).c_str(),
              job.user().c_str(),
              std::to_string(job.max_nodes() > 0 ? job.nodes_size() : 1).c_str(),
              num_alive(job),
              job.restarts(),
              agent::has_ended(job) ? std::to_string(job.exit_code()).c_str() : "");
}

// ", step 1200 (0.125 s each)"; empty: it reports none.
std::string reported_step(const v1::Worker& worker) {
  if (!worker.has_step()) return "";
  std::string text = ", step " + std::to_string(worker.step());
  if (worker.has_step_seconds() && worker.step_seconds() > 0) {
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%.3g", worker.step_seconds());
    text += std::string(" (") + seconds + " s each)";
  }
  return text;
}

void print_details(const v1::Job& job) {
  std::printf("job       %s\nuuid      %s\nstate     %s\nuser      %s (uid %u)\nrestarts  %u\n",
              job.job_id().c_str(),
              job.job_uuid().c_str(),
              agent::job_state_word(job.state()).c_str(),
              job.user().c_str(),
              job.uid(),
              job.restarts());
  if (job.max_nodes() > 0)
    std::printf("nodes     %u to %u wanted\n", job.min_nodes(), job.max_nodes());
  for (const v1::JobNode& node : job.nodes()) {
    std::printf("node      %s: ranks %u to %u%s\n",
                node.node_id().c_str(),
                node.first_rank(),
                node.first_rank() + std::max(1U, node.count()) - 1,
                node.is_gone() ? " (gone)" : "");
  }
  for (const v1::Worker& worker : job.workers()) {
    std::printf("rank %-4u %s%s\n",
                worker.rank(),
                worker.pid() > 0 ? ("pid " + std::to_string(worker.pid())).c_str() : "ended",
                reported_step(worker).c_str());
  }
  if (agent::has_ended(job)) {
    std::printf("exit      %d (%s)\n", job.exit_code(), printable(job.reason()).c_str());
  } else if (!job.reason().empty()) {
    std::printf("reason    %s\n", printable(job.reason()).c_str());
  }
  std::printf("%s", printable(job.report()).c_str());
}

void print_list(const v1::JobList& list, bool json) {
  if (json) return print_json(list);
  std::printf("node %s%s\n", list.node_id().c_str(), list.draining() ? " (drained)" : "");
  if (list.jobs_size() > 0) {
    std::printf("%-40s %-10s %-12s %5s %7s %8s %5s\n",
                "JOB",
                "STATE",
                "USER",
                "NODES",
                "WORKERS",
                "RESTARTS",
                "EXIT");
  }
  for (const v1::Job& job : list.jobs()) print_row(job);
  if (!list.notice().empty()) launcher::tell(kProgram, list.notice());
}

int status(const AgentClient& client, const Flags& flags) {
  if (!flags.job.empty()) {
    const auto job = find_job(client, flags, /*with_steps=*/true);
    if (!job) return fail(job.error());
    flags.json ? print_json(*job) : print_details(*job);
    return 0;
  }
  v1::ListReq request;
  request.set_with_steps(flags.json);
  const auto list = list_jobs(client, request);
  if (!list) return fail(list.error());
  print_list(*list, flags.json);
  return 0;
}

int logs(const AgentClient& client, const Flags& flags) {
  const auto job = find_job(client, flags);
  if (!job) return fail(job.error());
  if (auto checked = check_ranks(*job, flags.ranks, flags.follow); !checked)
    return fail(checked.error());
  v1::LogReq request;
  request.set_job(job->job_uuid());
  request.set_follow(flags.follow);
  for (const unsigned rank : flags.ranks) request.add_ranks(rank);
  const auto copied =
      copy_logs(client, request, flags.follow ? Patience(*job) : patience_of(flags));
  return copied ? 0 : fail(copied.error());
}

int answer_with_job(const Flags& flags, const Result<v1::Job>& job) {
  if (!job) return fail(job.error());
  if (flags.json) {
    print_json(*job);
  } else {
    std::printf("%s %s\n", job->job_id().c_str(), agent::job_state_word(job->state()).c_str());
  }
  return 0;
}

// Asking a second time would mean it (SIGKILL): so only the question which job it is waits for a coordinator.
int stop(const AgentClient& client, const Flags& flags) {
  const auto job = find_job(client, flags);
  if (!job) return fail(job.error());
  v1::StopReq request;
  request.set_job(job->job_uuid());
  request.set_kill(flags.kill);
  if (flags.grace) {
    const auto ms = static_cast<std::int64_t>(*flags.grace * 1000);
    *request.mutable_grace() = google::protobuf::util::TimeUtil::MillisecondsToDuration(ms);
  }
  return answer_with_job(flags, client.call(&v1::Control::Stub::StopJob, request));
}

// Sent once, as a stop is.
int send_signal(const AgentClient& client, const Flags& flags) {
  const auto job = find_job(client, flags);
  if (!job) return fail(job.error());
  v1::SignalReq request;
  request.set_job(job->job_uuid());
  request.set_signal(flags.signal);
  return answer_with_job(flags, client.call(&v1::Control::Stub::SignalJob, request));
}

int scale(const AgentClient& client, const Flags& flags) {
  const auto nodes = parse_nodes(flags.nodes, "the number of nodes");
  if (!nodes) return fail(nodes.error());
  v1::ScaleReq request;
  request.set_job(flags.job);
  request.set_nodes(static_cast<std::uint32_t>(nodes->least));
  request.set_max_nodes(static_cast<std::uint32_t>(nodes->most));
  return answer_with_job(
      flags, call_patiently(client, &v1::Control::Stub::ScaleJob, request, patience_of(flags)));
}

int drain(const AgentClient& client, const Flags& flags) {
  v1::NodeReq request;
  request.set_reason(flags.reason);
  request.set_stop_jobs(flags.stop_jobs);
  const auto done = client.call(&v1::Control::Stub::DrainNode, request);
  return done ? 0 : fail(done.error());
}

int undrain(const AgentClient& client, const Flags&) {
  const auto done = client.call(&v1::Control::Stub::UndrainNode, v1::NodeReq());
  return done ? 0 : fail(done.error());
}

int diagnose(const AgentClient& client, const Flags& flags) {
  const auto job = find_job(client, flags);
  return job ? show_diagnosis(client, job->job_uuid(), flags.json) : fail(job.error());
}

int watch_jobs(const AgentClient& client, const Flags& flags) {
  return watch(client, flags.job, flags.json);
}

// As JSON it is what status says.
int top(const AgentClient& client, const Flags& flags) {
  return flags.json ? status(client, flags) : show_top(client, flags);
}

int ledger(const AgentClient& client, const Flags& flags) {
  return show_ledger(client, flags.job, flags.json, patience_of(flags));
}

using Command = int (*)(const AgentClient&, const Flags&);

const std::map<std::string_view, Command>& commands() {
  static const std::map<std::string_view, Command> all = {{"run", run},
                                                          {"status", status},
                                                          {"logs", logs},
                                                          {"stop", stop},
                                                          {"signal", send_signal},
                                                          {"scale", scale},
                                                          {"diagnose", diagnose},
                                                          {"ledger", ledger},
                                                          {"watch", watch_jobs},
                                                          {"top", top},
                                                          {"drain", drain},
                                                          {"undrain", undrain}};
  return all;
}

}  // namespace

int run_agent_command(int argc, const char* const* argv) {
  Flags flags;
  CLI::App app("Starts, watches and restarts the processes of training jobs.", kProgram);
  app.require_subcommand(1);
  launcher::add_agent_commands(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const CLI::App* asked = app.get_subcommand(argv[1]);
    std::fputs(help_text(launcher::description_of(asked->get_name(), *asked)).c_str(), stdout);
    return 0;
  } catch (const CLI::ParseError& error) {
    const std::string command = std::string(kProgram) + " " + argv[1];
    return fail(Error(ErrorCode::kUsage, error.what(), "see `" + command + " --help`"));
  }
  // Before gRPC has threads: what they do not block would end the program there.
  CLI::App* chosen = app.get_subcommands().front();
  if (chosen->get_name() == "run" && !flags.detach) block_forwarded_signals();
  if (chosen->get_name() == "top" && !flags.once && !flags.json) block_top_signals();
  const auto client =
      AgentClient::make(parse_agent_address(flags.agent, flags.tls_dir, flags.insecure));
  if (!client) return fail(client.error());
  return commands().at(chosen->get_name())(*client, flags);
}

}  // namespace accel::cluster
