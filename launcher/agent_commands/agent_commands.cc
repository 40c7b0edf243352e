#include "launcher/agent_commands/agent_commands.h"

#include <cstdio>

#include <CLI/CLI.hpp>

#include "launcher/agent_commands/signal_word.h"
#include "launcher/flags/command_parser.h"
#include "launcher/workers/node_range.h"
#include "runtime/byte_size.h"
#include "runtime/printable.h"
#include "runtime/text/number_text.h"

namespace accel::launcher {
namespace {

// A check of a number of seconds.
auto seconds_from(double least) {
  return [least](const std::string& text) { return objection_to_seconds(text, least); };
}

CLI::Option* add_job(CLI::App& command, AgentFlags& flags) {
  return command.add_option("job", flags.job, "id or uuid");
}

void add_required_job(CLI::App& command, AgentFlags& flags) {
  add_job(command, flags)->required();
}

void add_common_flags(CLI::App& command, AgentFlags& flags) {
  command.set_help_flag("-h,--help", "show this text");
  command.add_option(
      "--agent",
      flags.agent,
      "folder of the agent's sockets, or ADDR:PORT; else $ACCEL_AGENT, else /run/accel");
  command.add_option(
      "--tls-dir", flags.tls_dir, "folder with ca.pem, cert.pem and key.pem, for ADDR:PORT");
  command.add_flag("--insecure", flags.insecure, "no TLS, for ADDR:PORT on loopback");
  command.add_flag("--json", flags.json, "print JSON");
  command
      .add_option("--wait", flags.wait, "seconds to wait for a coordinator, while none leads (30)")
      ->check(seconds_from(0));
}

// How many workers, where, and how they are restarted.
void add_workers(CLI::App& command, RunFlags& run) {
  command.add_option(
      "--name", run.name, "the job's id; made from the program's name when not given");
  command.add_option("--nnodes",
                     run.nodes,
                     "MIN or MIN:MAX nodes, found by the agents' coordinator; 1 when not given");
  command
      .add_option("-n,--num_processes",
                  run.num_processes,
                  "workers on all nodes together; one on each when nothing is said")
      ->check(CLI::Range(1, 1024 * kMostJobNodes));
  command.add_option("--nproc_per_node", run.nproc_per_node, "workers on each node")
      ->check(CLI::Range(1, 1024));
  command.add_option("--max_restarts", run.max_restarts, "restarts after failures");
  command
      .add_option("--stop-grace", run.stop_grace, "seconds from the stop signal to SIGKILL (30)")
      ->check(seconds_from(0));
  command
      .add_option("--hang_timeout",
                  run.hang_timeout,
                  "auto, off, or seconds without a step after which a worker counts as hung (off)")
      ->check([](const std::string& text) { return objection_to_hang_timeout(text); });
}

void add_log_flags(CLI::App& command, RunFlags& run) {
  command
      .add_option("--log_rotate_bytes",
                  run.log_rotate_bytes,
                  "begin a new log file when one has so many bytes, as 256M; 0: never (0)")
      ->check([](const std::string& text) {
        return parse_byte_size(text) ? "" : "'" + text + "' is not a number of bytes, as in 256M";
      });
  command.add_option("--log_keep", run.log_keep, "full log files of each stream that stay (8)")
      ->check(CLI::Range(1, 1000));
  command
      .add_option(
          "--log_overflow",
          run.log_overflow,
          "output that a log file does not take as fast as it comes: block, drop or sample (block)")
      ->check(CLI::IsMember({"block", "drop", "sample"}));
  command.add_flag("--log_merge_stderr",
                   run.log_merge_stderr,
                   "make stdout and stderr of every worker one stream, stdout");
}

void add_run(CLI::App& command, AgentFlags& flags) {
  RunFlags& run = flags.run;
  add_workers(command, run);
  add_log_flags(command, run);
  command
      .add_option("--preflight",
                  run.preflight,
                  "NAME=COMMAND that every node runs before the workers start (repeatable)")
      ->allow_extra_args(false);
  command
      .add_option("--preflight_seconds", run.preflight_seconds, "how long each check may take (30)")
      ->check(seconds_from(0.001));
  command.add_option("--cwd", run.cwd, "the workers' folder; this one when not given");
  command.add_option("--tracking_dir",
                     run.tracking_dir,
                     "where its trackers write: the agent's page draws their curves");
  command.add_option("--env", run.env, "NAME=VALUE on top of this environment (repeatable)")
      ->allow_extra_args(false);
  command.add_option(
      "--spec", run.spec, "JSON file with what the job asks for (a JobSpec); flags go before it");
  command.add_flag("--detach", flags.detach, "print the job's id and return");
  command.add_option("command", run.command, "the program and its arguments, after --");
  command.callback([&run] {
    if (run.command.empty() && run.spec.empty()) throw CLI::RequiredError("command");
  });
}

void add_logs(CLI::App& command, AgentFlags& flags) {
  add_required_job(command, flags);
  command.add_flag("-f,--follow", flags.follow, "until the job ends");
  command.add_option("--rank", flags.ranks, "only this rank (repeatable)")->allow_extra_args(false);
}

void add_stop(CLI::App& command, AgentFlags& flags) {
  add_required_job(command, flags);
  command.add_flag("--kill", flags.kill, "SIGKILL at once");
  command
      .add_option("--grace", flags.grace, "seconds until SIGKILL, when shorter than the job's own")
      ->check(seconds_from(0))
      ->excludes("--kill");
}

void add_signal(CLI::App& command, AgentFlags& flags) {
  add_required_job(command, flags);
  const auto to_number = [](std::string& text) -> std::string {
    const auto signal = signal_of(text);
    if (!signal) return "'" + printable(text) + "' is no signal, as 10 or USR1";
    text = std::to_string(*signal);
    return "";
  };
  command.add_option("signal", flags.signal, "its number or name, as 10 or USR1")
      ->required()
      ->transform(CLI::Validator(to_number, "SIGNAL"));
}

void add_scale(CLI::App& command, AgentFlags& flags) {
  add_required_job(command, flags);
  command.add_option("nodes", flags.nodes, "MIN or MIN:MAX")->required();
}

void add_drain(CLI::App& command, AgentFlags& flags) {
  command.add_option("--reason", flags.reason, "for those who look");
  command.add_flag("--stop", flags.stop_jobs, "stop what runs there");
}

void add_top(CLI::App& command, AgentFlags& flags) {
  add_job(command, flags)->description("id or uuid: begin with its ranks");
  command.add_flag("--once", flags.once, "print one frame as text, after one interval");
  command.add_option("--interval", flags.interval, "seconds between two looks, from 0.1 (1)")
      ->check(seconds_from(0.1));
}

void add_optional_job(CLI::App& command, AgentFlags& flags) {
  add_job(command, flags);
}

void add_nothing(CLI::App&, AgentFlags&) {}

CLI::App* add_one(CLI::App& app, AgentFlags& flags, const AgentCommand& command) {
  CLI::App* const added =
      app.add_subcommand(std::string(command.name), std::string(command.summary));
  command.add_flags(*added, flags);
  add_common_flags(*added, flags);
  return added;
}

}  // namespace

std::span<const AgentCommand> agent_commands() noexcept {
  static constexpr AgentCommand kCommands[] = {
      {"run", "submit a job to the agent of this machine and follow it", add_run, true},
      {"status", "the jobs of an agent, or one job", add_optional_job},
      {"logs", "what the workers of a job wrote", add_logs},
      {"stop", "stop a job: its stop signal, its grace, then SIGKILL", add_stop},
      {"signal", "send a signal to the workers of a job", add_signal},
      {"scale", "change how many nodes a job has", add_scale},
      {"diagnose", "where the workers of a job stand, by the kernel's word", add_required_job},
      {"ledger", "where the time of a job went", add_required_job},
      {"watch", "each change of a job until it ends, or of all jobs", add_optional_job},
      {"top", "jobs and workers on the whole screen: sort, filter, stop", add_top},
      {"drain", "let the node start no more jobs", add_drain},
      {"undrain", "let the node start jobs again", add_nothing},
  };
  return kCommands;
}

void add_agent_commands(CLI::App& app, AgentFlags& flags) {
  for (const AgentCommand& command : agent_commands()) add_one(app, flags, command);
}

CommandDescription describe(const AgentCommand& command) {
  CLI::App app;
  AgentFlags flags;
  return description_of(command.name, *add_one(app, flags, command));
}

std::optional<double> hang_seconds(const std::string& text) {
  const auto seconds = number_of<double>(text);
  const bool is_good = seconds && *seconds >= 0.001 && *seconds <= 366.0 * 86'400;
  return is_good ? seconds : std::nullopt;
}

std::string objection_to_hang_timeout(const std::string& text) {
  const bool is_good = text == "auto" || text == "off" || hang_seconds(text);
  return is_good ? "" : "'" + text + "' is not auto, off or a number of seconds above 0";
}

std::string objection_to_seconds(const std::string& text, double least) {
  constexpr double kDay = 86'400;
  const auto seconds = number_of<double>(text);
  if (seconds && *seconds >= least && *seconds <= kDay) return "";  // nan is neither
  char from[32];
  std::snprintf(from, sizeof from, "%g", least);
  return "'" + text + "' is not a number of seconds from " + from + " to 86400 (a day)";
}

}  // namespace accel::launcher
