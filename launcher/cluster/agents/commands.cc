#include "launcher/cluster/agents/commands.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <google/protobuf/util/time_util.h>
#include <unistd.h>

#include "agent/jobs/job_page.h"
#include "agent/jobs/job_state.h"
#include "launcher/cluster/agents/agent_client.h"
#include "launcher/cluster/agents/answers.h"
#include "launcher/cluster/agents/followed_job.h"
#include "launcher/cluster/agents/inspection.h"
#include "launcher/cluster/agents/patience.h"
#include "launcher/cluster/agents/rank_choice.h"
#include "launcher/cluster/agents/run_request.h"
#include "launcher/cluster/agents/signal_word.h"
#include "launcher/flags/command_parser.h"
#include "launcher/run/notice_line.h"
#include "runtime/byte_size.h"
#include "runtime/printable.h"

namespace accel::cluster {
namespace {

struct Flags {
  std::string agent;
  std::string tls_dir;
  bool insecure = false;
  bool json = false;
  std::string job;
  double wait = static_cast<double>(kCoordinatorWait.count());  // seconds

  RunFlags run;
  bool detach = false;

  // logs, stop, signal, scale, drain
  std::vector<unsigned> ranks;
  bool follow = false;
  bool kill = false;
  std::optional<double> grace;  // seconds
  int signal = SIGTERM;
  std::string nodes;  // "MIN[:MAX]"
  std::string reason;
  bool stop_jobs = false;
};

// With a coordinator that is away, as when another agent is being elected.
Patience patience_of(const Flags& flags) {
  return Patience(std::chrono::milliseconds(static_cast<std::int64_t>(flags.wait * 1000)));
}

Result<v1::Job> find_job(const AgentClient& client, const Flags& flags) {
  v1::JobRef ref;
  ref.set_job(flags.job);
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

// Of a job of many nodes: the workers of the nodes that are there.
unsigned num_alive(const v1::Job& job) {
  unsigned count = 0;
  for (const v1::Worker& worker : job.workers()) count += worker.pid() > 0 ? 1 : 0;
  if (job.state() != v1::JOB_STATE_RUNNING) return count;
  for (const v1::JobNode& node : job.nodes()) count += node.is_gone() ? 0 : node.count();
  return count;
}

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
    std::printf("rank %-4u %s\n",
                worker.rank(),
                worker.pid() > 0 ? ("pid " + std::to_string(worker.pid())).c_str() : "ended");
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
    const auto job = find_job(client, flags);
    if (!job) return fail(job.error());
    flags.json ? print_json(*job) : print_details(*job);
    return 0;
  }
  agent::JobPages pages;
  v1::ListReq request;
  do {
    auto page = client.call(&v1::Control::Stub::ListJobs, request);
    if (!page) return fail(page.error());
    request.set_after(pages.take(*std::move(page)));
  } while (!request.after().empty());
  print_list(pages.list(), flags.json);
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

CLI::Validator signal_transform() {
  return {[](std::string& text) -> std::string {
            const auto signal = signal_of(text);
            if (!signal) return "'" + printable(text) + "' is no signal, as 10 or USR1";
            text = std::to_string(*signal);
            return "";
          },
          "SIGNAL"};
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

// ---- the command line ----

using Command = std::function<int(const AgentClient&, const Flags&)>;

CLI::App* add_command(CLI::App& app, Flags& flags, const char* name, const char* help) {
  CLI::App* command = app.add_subcommand(name, help);
  command->set_help_flag("-h,--help", "show this text");
  command->add_option(
      "--agent",
      flags.agent,
      "folder of the agent's sockets, or ADDR:PORT; else $ACCEL_AGENT, else /run/accel");
  command->add_option(
      "--tls-dir", flags.tls_dir, "folder with ca.pem, cert.pem and key.pem, for ADDR:PORT");
  command->add_flag("--insecure", flags.insecure, "no TLS, for ADDR:PORT on loopback");
  command->add_flag("--json", flags.json, "print JSON");
  command
      ->add_option("--wait", flags.wait, "seconds to wait for a coordinator, while none leads (30)")
      ->check([](const std::string& text) { return objection_to_seconds(text, 0); });
  return command;
}

std::map<CLI::App*, Command> add_commands(CLI::App& app, Flags& flags) {
  std::map<CLI::App*, Command> commands;
  CLI::App* command =
      add_command(app, flags, "run", "submit a job to the agent of this machine and follow it");
  command->add_option(
      "--name", flags.run.name, "the job's id; made from the program's name when not given");
  command->add_option("--nnodes",
                      flags.run.nodes,
                      "MIN or MIN:MAX nodes, found by the agents' coordinator; 1 when not given");
  command
      ->add_option("-n,--num_processes",
                   flags.run.num_processes,
                   "workers on all nodes together; one on each when nothing is said")
      ->check(CLI::Range(1, 1024 * launcher::kMostJobNodes));
  command->add_option("--nproc_per_node", flags.run.nproc_per_node, "workers on each node")
      ->check(CLI::Range(1, 1024));
  command->add_option("--max_restarts", flags.run.max_restarts, "restarts after failures");
  command
      ->add_option(
          "--stop-grace", flags.run.stop_grace, "seconds from the stop signal to SIGKILL (30)")
      ->check([](const std::string& text) { return objection_to_seconds(text, 0); });
  command
      ->add_option("--hang_timeout",
                   flags.run.hang_timeout,
                   "auto, off, or seconds without a step after which a worker counts as hung (off)")
      ->check([](const std::string& text) { return objection_to_hang_timeout(text); });
  command
      ->add_option("--log_rotate_bytes",
                   flags.run.log_rotate_bytes,
                   "begin a new log file when one has so many bytes, as 256M; 0: never (0)")
      ->check([](const std::string& text) {
        return parse_byte_size(text) ? "" : "'" + text + "' is not a number of bytes, as in 256M";
      });
  command
      ->add_option("--log_keep", flags.run.log_keep, "full log files of each stream that stay (8)")
      ->check(CLI::Range(1, 1000));
  command
      ->add_option(
          "--log_overflow",
          flags.run.log_overflow,
          "output that a log file does not take as fast as it comes: block, drop or sample (block)")
      ->check(CLI::IsMember({"block", "drop", "sample"}));
  command->add_flag("--log_merge_stderr",
                    flags.run.log_merge_stderr,
                    "make stdout and stderr of every worker one stream, stdout");
  command
      ->add_option("--preflight",
                   flags.run.preflight,
                   "NAME=COMMAND that every node runs before the workers start (repeatable)")
      ->allow_extra_args(false);
  command
      ->add_option(
          "--preflight_seconds", flags.run.preflight_seconds, "how long each check may take (30)")
      ->check([](const std::string& text) { return objection_to_seconds(text, 0.001); });
  command->add_option("--cwd", flags.run.cwd, "the workers' folder; this one when not given");
  command->add_option("--env", flags.run.env, "NAME=VALUE on top of this environment (repeatable)")
      ->allow_extra_args(false);
  command->add_option("--spec",
                      flags.run.spec,
                      "JSON file with what the job asks for (a JobSpec); flags go before it");
  command->add_flag("--detach", flags.detach, "print the job's id and return");
  command->add_option("command", flags.run.command, "the program and its arguments, after --");
  command->callback([&flags] {
    if (flags.run.command.empty() && flags.run.spec.empty()) throw CLI::RequiredError("command");
  });
  commands[command] = run;
  command = add_command(app, flags, "status", "the jobs of an agent, or one job");
  command->add_option("job", flags.job, "id or uuid");
  commands[command] = status;
  command = add_command(app, flags, "logs", "what the workers of a job wrote");
  command->add_option("job", flags.job, "id or uuid")->required();
  command->add_flag("-f,--follow", flags.follow, "until the job ends");
  command->add_option("--rank", flags.ranks, "only this rank (repeatable)")
      ->allow_extra_args(false);
  commands[command] = logs;
  command = add_command(app, flags, "stop", "stop a job: its stop signal, its grace, then SIGKILL");
  command->add_option("job", flags.job, "id or uuid")->required();
  command->add_flag("--kill", flags.kill, "SIGKILL at once");
  command
      ->add_option("--grace", flags.grace, "seconds until SIGKILL, when shorter than the job's own")
      ->check([](const std::string& text) { return objection_to_seconds(text, 0); })
      ->excludes("--kill");
  commands[command] = stop;
  command = add_command(app, flags, "signal", "send a signal to the workers of a job");
  command->add_option("job", flags.job, "id or uuid")->required();
  command->add_option("signal", flags.signal, "its number or name, as 10 or USR1")
      ->required()
      ->transform(signal_transform());
  commands[command] = send_signal;
  command = add_command(app, flags, "scale", "change how many nodes a job has");
  command->add_option("job", flags.job, "id or uuid")->required();
  command->add_option("nodes", flags.nodes, "MIN or MIN:MAX")->required();
  commands[command] = scale;
  command = add_command(app, flags, "drain", "let the node start no more jobs");
  command->add_option("--reason", flags.reason, "for those who look");
  command->add_flag("--stop", flags.stop_jobs, "stop what runs there");
  commands[command] = drain;
  commands[add_command(app, flags, "undrain", "let the node start jobs again")] = undrain;
  command =
      add_command(app, flags, "diagnose", "where the workers of a job stand, by the kernel's word");
  command->add_option("job", flags.job, "id or uuid")->required();
  commands[command] = [](const AgentClient& client, const Flags& its) {
    const auto job = find_job(client, its);
    return job ? show_diagnosis(client, job->job_uuid(), its.json) : fail(job.error());
  };
  command = add_command(app, flags, "watch", "each change of a job until it ends, or of all jobs");
  command->add_option("job", flags.job, "id or uuid");
  commands[command] = [](const AgentClient& client, const Flags& its) {
    return watch(client, its.job, its.json);
  };
  command = add_command(app, flags, "ledger", "where the time of a job went");
  command->add_option("job", flags.job, "id or uuid")->required();
  commands[command] = [](const AgentClient& client, const Flags& its) {
    return show_ledger(client, its.job, its.json, patience_of(its));
  };
  return commands;
}

}  // namespace

int run_agent_command(int argc, const char* const* argv) {
  Flags flags;
  CLI::App app("Starts, watches and restarts the processes of training jobs.", kProgram);
  app.require_subcommand(1);
  const auto commands = add_commands(app, flags);
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
  const auto client =
      AgentClient::make(parse_agent_address(flags.agent, flags.tls_dir, flags.insecure));
  if (!client) return fail(client.error());
  return commands.at(chosen)(*client, flags);
}

}  // namespace accel::cluster
