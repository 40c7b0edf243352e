#include "launcher/launch/cmd_launch.h"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <utility>
#include <variant>

#include <sys/stat.h>
#include <unistd.h>

#include "launcher/cluster_entry/cluster_library.h"
#include "launcher/flags/flag_spelling.h"
#include "launcher/plan/dry_run.h"
#include "launcher/plan/launch_plan.h"
#include "launcher/run/inherited_error_file.h"
#include "launcher/run/interrupt_end.h"
#include "launcher/run/launch_loop.h"
#include "launcher/run/progress_line.h"
#include "launcher/run/progress_when.h"
#include "launcher/run/report.h"
#include "launcher/run/stdin_watch.h"
#include "launcher/start/machines/run/etcd_launch.h"
#include "launcher/start/ssh/stdin_variables.h"
#include "launcher/text/program.h"
#include "launcher/watch/operators_file.h"
#include "launcher/watch/watch_service.h"
#include "launcher/workers/log_folder.h"
#include "runtime/text/host_name.h"

namespace accel::launcher {
namespace {

void print_line(std::FILE* stream, const std::string& text) {
  std::fprintf(stream, "%s%s", text.c_str(), text.ends_with('\n') ? "" : "\n");
}

void print_launch_notice(const std::string& program, const std::string& text) {
  print_line(stderr, program + ": " + respelled(text, program_of(program)));
}

// The last lines of a single worker stand right above the report already, unless they went to a file.
ReportStyle report_style(const std::string& program, const LaunchPlan& plan) {
  const supervisor::JobSpec& spec = plan.spec;
  const bool is_on_screen =
      spec.workers.size() == 1 && spec.workers.front().redirect == supervisor::Streams::kNone;
  return {.color = ::isatty(STDERR_FILENO) == 1,
          .is_on_screen = is_on_screen,
          .program = program,
          .names = plan.worker_names,
          .hosts = plan.hosts};
}

supervisor::Milliseconds grace_for(const LaunchPlan& plan, int signal) {
  return granted_grace(plan.spec.stop.grace, signal, plan.allocation_end);
}

struct Ending {
  supervisor::JobOutcome outcome;
  bool is_interrupted = false;  // see LaunchLoop
};

// A program that reads our output from a pipe may show it on this terminal (tee), behind the line.
bool shows_progress(ProgressWhen when) {
  struct stat out {};
  const bool is_piped =
      ::fstat(STDOUT_FILENO, &out) == 0 && (S_ISFIFO(out.st_mode) || S_ISSOCK(out.st_mode));
  const bool is_wanted = when == ProgressWhen::kOn || (when == ProgressWhen::kAuto && !is_piped);
  return is_wanted && ::isatty(STDERR_FILENO) == 1;
}

// Other users may read stderr if it is not a terminal. nullptr: no file is needed, or it cannot be written; the job runs all the same.
std::unique_ptr<OperatorsFile> tell_operators(const std::string& program,
                                              const WatchService* watch,
                                              const LaunchHost& host) {
  const std::string address = watch != nullptr ? watch->operators_address() : "";
  if (address.empty()) return nullptr;
  const std::string what = "to stop the job from the dashboard, open ";
  if (::isatty(STDERR_FILENO) == 1) {
    print_launch_notice(program, what + address);
    return nullptr;
  }
  auto file = OperatorsFile::write(host.environment, host.job_suffix, address);
  if (!file) {
    print_launch_notice(program,
                        "the job cannot be stopped from the dashboard: " + file.error().message());
    return nullptr;
  }
  print_launch_notice(program, what + "the address in " + (*file)->path());
  return *std::move(file);
}

// The signals are ours before the shim exists, and the operators' file: one that comes in between is not lost, and leaves neither.
Result<Ending> run_job(const std::string& program,
                       const LaunchPlan& plan,
                       const LaunchHost& launch_host,
                       NoticeQueue& notices,
                       WatchService* watch) {
  const auto signals = TakenSignals::take();
  if (!signals) return signals.error();
  // A notice for a console that is gone is no reason to leave the workers.
  ::signal(SIGPIPE, SIG_IGN);
  const auto operators = tell_operators(program, watch, launch_host);
  auto host = supervisor::start_shim(plan.spec);
  if (!host) return std::move(host).error();
  LaunchLoopOptions options;
  options.shares_terminal = plan.spec.console.foreground;
  options.num_workers = static_cast<int>(plan.spec.workers.size());
  options.max_restarts = plan.spec.restart.max_restarts;
  options.notices = &notices;
  if (!plan.quiet) {
    options.notice = [&](const std::string& text) { notices.push(program + ": " + text); };
  }
  options.grace = [&plan](int signal) { return grace_for(plan, signal); };
  if (watch != nullptr) {
    options.on_event = [watch](const auto& event) { watch->hear(event); };
    options.on_stop_asked = [watch] { watch->ask_to_stop(); };
    options.beside = &watch->loop();
  }
  ProgressLine progress(plan.progress, SteadyClock().now());
  if (shows_progress(plan.progress)) options.progress.line = &progress;
  LaunchLoop loop(**host, std::move(options));
  if (watch != nullptr) {
    watch->attend({.request = [&host](const auto& request) { (*host)->request(request); },
                   .stop =
                       [&](const std::string& from) {
                         if (!plan.quiet) notices.push(program + ": " + from + " stops the job");
                         loop.on_signal({.number = SIGTERM});
                       }});
  }
  auto outcome = loop.run(signals->fd());
  if (watch != nullptr && !outcome) watch->lose(outcome.error());
  if (watch != nullptr) watch->finish();
  if (!outcome) return std::move(outcome).error();
  return Ending{*std::move(outcome), loop.is_interrupted()};
}

// nullptr: nobody is to watch.
Result<std::unique_ptr<WatchService>> start_watch(const std::string& program,
                                                  const LaunchPlan& plan) {
  if (!plan.watch.is_any()) return std::unique_ptr<WatchService>();
  auto service = WatchService::start(
      plan.watch, {.job = plan.spec.job_id, .node = host_name()}, plan.spec.log.dir);
  if (!service) return std::move(service).error();
  for (const std::string& line : (*service)->notices()) print_launch_notice(program, line);
  return service;
}

void keep_failure(const std::string& program,
                  const supervisor::JobOutcome& outcome,
                  int num_workers,
                  const EnvMap& environment) {
  if (const auto kept = keep_error_file(outcome, num_workers, environment); !kept)
    print_launch_notice(program, kept.error().message());
}

// The folder that the plan chose itself. SLURM's batch script is no node: each of its nodes has one.
Result<void> make_log_folder(const std::string& program,
                             const LaunchPlan& plan,
                             const LaunchHost& host) {
  const auto* nodes = std::get_if<ElasticSettings>(&plan.start);
  const bool is_elsewhere = nodes != nullptr && nodes->meeting == Meeting::kStarter;
  const std::string& folder = plan.spec.log.dir;
  if (is_elsewhere || folder != private_log_folder(host.environment, host.job_suffix)) return {};
  if (auto made = make_private_log_folder(folder, program_of(program)); !made) return made;
  if (!plan.quiet)
    print_launch_notice(program,
                        "log files go to " + folder + " (choose another place with " +
                            spelled("log_dir", program_of(program)) + ")");
  return {};
}

// What this process was started with, for the launchers on other nodes.
std::vector<std::string> same_command(const std::string& program,
                                      const std::vector<std::string>& arguments,
                                      const LaunchHost& host) {
  std::vector<std::string> command = {host.program_folder + "/" + program};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

// Starts what is planned, and gives the exit code.
struct Runner {
  const std::string& program;
  const std::vector<std::string>& arguments;
  const LaunchPlan& plan;
  const LaunchHost& host;

  // One shim here: of the workers, or of what starts them.
  Result<int> operator()(const OneMachine&) const {
    NoticeQueue notices(STDERR_FILENO);
    const auto watch = start_watch(program, plan);
    if (!watch) return watch.error();
    const auto ending = run_job(program, plan, host, notices, watch->get());
    std::fputs(notices.take_unwritten().c_str(), stderr);
    if (!ending) return ending.error();
    const supervisor::JobOutcome& outcome = ending->outcome;
    const int num_workers = static_cast<int>(plan.spec.workers.size());
    keep_failure(program, outcome, num_workers, host.environment);
    if (!plan.quiet)
      std::fputs(render_report(outcome, num_workers, report_style(program, plan)).c_str(), stderr);
    if (ending->is_interrupted) end_by_interrupt();
    return outcome.exit_code;
  }
  Result<int> operator()(const HostSettings&) const { return (*this)(OneMachine()); }
  Result<int> operator()(const PodStart&) const { return (*this)(OneMachine()); }
  Result<int> operator()(const MpiSettings&) const { return (*this)(OneMachine()); }

  // The workers of this machine, and what all of them come to. The operators' file is ours alone once the signals are taken.
  Result<int> operator()(const MachinesSettings& machines) const {
    NoticeQueue notices(STDERR_FILENO);
    const auto ending = meet_machines(machines, notices);
    std::fputs(notices.take_unwritten().c_str(), stderr);
    if (!ending) return ending.error();
    if (ending->outcome)
      keep_failure(program, *ending->outcome, ending->world_size, host.environment);
    if (ending->is_interrupted) end_by_interrupt();
    return ending->exit_code;
  }

  Result<MachinesEnding> meet_machines(const MachinesSettings& machines,
                                       NoticeQueue& notices) const {
    auto token = find_job_token(plan.inherited);
    if (!token) return token.error();
    const auto signals = TakenSignals::take();
    if (!signals) return signals.error();
    const auto watch = start_watch(program, plan);
    if (!watch) return watch.error();
    const auto operators = tell_operators(program, watch->get(), host);
    ProgressLine progress(plan.progress, SteadyClock().now());
    MachinesLaunchOptions options = {
        .settings = machines,
        .spec = plan.spec,
        .token = *std::move(token),
        .quiet = plan.quiet,
        .report = report_style(program, plan),
        .grace = [this](int signal) { return grace_for(plan, signal); },
        .progress = shows_progress(plan.progress) ? &progress : nullptr,
        .watch = watch->get()};
    return machines.etcd ? launch_by_etcd(std::move(options), notices)
                         : launch_machines(std::move(options), notices);
  }

  Result<int> operator()(ElasticSettings nodes) const {
    if (nodes.meeting == Meeting::kStarter)
      nodes.node_command = same_command(program, arguments, host);
    return run_cluster_command({kElasticCommand, to_json(nodes, plan.spec)});
  }

  Result<int> operator()(const Submission& submission) const { return submit(submission); }
};

// What must be there before anything starts.
Result<void> prepare(const std::string& program, const LaunchPlan& plan, const LaunchHost& host) {
  const auto* mpi = std::get_if<MpiSettings>(&plan.start);
  if (mpi != nullptr && !mpi->hostfile.empty()) {
    if (auto checked = check_mpi_hostfile(mpi->hostfile); !checked) return checked;
  }
  if (plan.stop_with_stdin) {
    if (auto watched = watch_stdin(); !watched) return watched;
  }
  return make_log_folder(program, plan, host);
}

}  // namespace

int cmd_launch(const std::vector<std::string>& arguments, bool is_torchrun) {
  ::signal(SIGXFSZ, SIG_IGN);  // what does not fit into a file is an error, and told
  const std::string program(name_of(is_torchrun ? Program::kTorchrun : Program::kLaunch));
  if (const auto taken = take_stdin_variables(STDIN_FILENO); !taken)
    return print_failure(program, taken.error());
  LaunchHost host = real_launch_host();
  host.is_torchrun = is_torchrun;
  const auto plan = resolve_launch(arguments, host);
  if (!plan) return print_failure(program, plan.error());
  if (plan->answer) {
    print_line(stdout, *plan->answer);
    return 0;
  }
  if (!plan->quiet) {
    for (const std::string& notice : plan->notices) print_launch_notice(program, notice);
  }
  const bool is_submitted = std::holds_alternative<Submission>(plan->start);
  if (plan->dry_run && !is_submitted) {
    print_line(stdout, render_dry_run(*plan));
    return 0;
  }
  if (!is_submitted) {
    if (const auto prepared = prepare(program, *plan, host); !prepared)
      return print_failure(program, prepared.error());
  }
  const auto status = std::visit(Runner{program, arguments, *plan, host}, plan->start);
  return status ? *status : print_failure(program, status.error());
}

}  // namespace accel::launcher
