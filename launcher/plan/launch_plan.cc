// Puts the pieces together: command line -> configuration -> settings -> command -> shares -> JobSpec.
//
// Faults of independent pieces are collected: a wrong flag value and a missing script are reported at once. A command line
// or configuration that cannot be read ends the resolution: all after it would only repeat the same mistake.

#include "launcher/plan/launch_plan.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <utility>

#include "launcher/config/config_file.h"
#include "launcher/devices/gpu_affinity.h"
#include "launcher/flags/flag_table.h"
#include "launcher/flags/flag_words.h"
#include "launcher/flags/flags.h"
#include "launcher/flags/launch_help.h"
#include "launcher/flags/retired_flags.h"
#include "launcher/plan/cpu_fallback.h"
#include "launcher/plan/launch_script.h"
#include "launcher/plan/launch_settings.h"
#include "launcher/plan/torchrun_translation.h"
#include "launcher/start/mpi/mpi_launch.h"
#include "launcher/start/sagemaker/submission_plan.h"
#include "launcher/start/sagemaker/training_container.h"
#include "launcher/start/ssh/host_spec.h"
#include "launcher/text/choice_list.h"
#include "launcher/text/faults.h"
#include "launcher/workers/compat_environment.h"
#include "launcher/workers/compute_device.h"
#include "launcher/workers/core_shares.h"
#include "launcher/workers/log_folder.h"
#include "launcher/workers/spec_flags.h"
#include "launcher/workers/worker_environment.h"
#include "runtime/environment_value.h"
#include "runtime/printable.h"
#include "runtime/text/letter_case.h"
#include "runtime/user_folders.h"

#ifndef ACCEL_VERSION
#error "ACCEL_VERSION comes from the build"
#endif

namespace accel::launcher {
namespace {

namespace fs = std::filesystem;
using supervisor::JobSpec;
using supervisor::Streams;
using supervisor::WorkerSpec;

supervisor::Milliseconds milliseconds(double seconds) {
  return supervisor::Milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

// The file that holds for this command line, or std::nullopt. The default file is optional, and
// --cpu ignores it as the peer does.
Result<std::optional<ConfigFile>> find_config(const CommandLine& line, const LaunchHost& host) {
  std::string path = line.text("config_file").value_or("");
  if (!line.has("config_file")) {
    path = default_config_path(host.environment, host.home);
    std::error_code ignored;
    if (line.is_torchrun || line.is_on("cpu") || path.empty() ||
        !fs::is_regular_file(path, ignored)) {
      return std::optional<ConfigFile>();
    }
  }
  Result<ConfigFile> file = load_config_file(path);
  if (!file) return std::move(file).error();
  if (line.is_on("strict") && !file->notices.empty()) return strict_error(file->notices);
  return std::optional(*std::move(file));
}

// At most 64 characters of [A-Za-z0-9_.-].
std::string job_id(const std::string& name, const std::string& suffix) {
  constexpr size_t kMostNameLetters = 32;
  std::string id;
  for (unsigned char c : name.substr(0, kMostNameLetters)) {
    id += std::isalnum(c) != 0 || c == '_' || c == '.' || c == '-' ? static_cast<char>(c) : '_';
  }
  return id + "-" + suffix;
}

// What the job is called, and its log folder with it: the run id that was given, as torchrun calls its folder, else the
// program. Nodes that join a cluster have the names that their coordinator knows.
std::string name_of_job(const CommandLine& line,
                        const LaunchSettings& settings,
                        const WorkerCommand& command) {
  const std::string run_id = line.text("rdzv_id").value_or(line.run_id);
  const bool is_named = run_id != "none" && !run_id.empty() && !line.is_on("standalone");
  const bool is_elastic = std::holds_alternative<ElasticSettings>(settings.start);
  return is_named && !is_elastic ? run_id : command.name;
}

std::vector<WorkerSpec> make_workers(const LaunchSettings& settings,
                                     const WorkerCommand& command,
                                     const AffinityPlan& cores,
                                     const LaunchHost& host) {
  EnvMap compat;
  if (settings.strict_compat) {
    const int machine_cores = host.num_machine_cores ? host.num_machine_cores() : 1;
    compat = compat_thread_environment(host.environment, settings, machine_cores);
  }
  std::vector<WorkerSpec> workers;
  for (int rank = 0; rank < settings.num_processes; ++rank) {
    const auto index = static_cast<size_t>(rank);
    const WorkerShare share = cores.workers.empty() ? WorkerShare{} : cores.workers[index];
    WorkerSpec worker;
    worker.local_rank = worker.global_rank = rank;
    worker.argv = command.argv;
    worker.env = settings.strict_compat
                     ? compat
                     : thread_environment(host.environment, settings, share.num_threads);
    worker.cpus = share.cpus;
    worker.redirect = settings.output.redirect[index];
    worker.tee = settings.output.tee[index];
    workers.push_back(std::move(worker));
  }
  return workers;
}

// Files are needed when a stream goes to one; without --log_dir they go to a folder of the job.
std::string choose_log_dir(const LaunchSettings& settings, const LaunchHost& host) {
  if (!settings.output.log_dir.empty()) {
    std::error_code failure;  // the folder of the launch is gone: making the other one will say so
    const fs::path folder = fs::absolute(settings.output.log_dir, failure);
    return (failure ? fs::path(settings.output.log_dir) : folder).lexically_normal().string();
  }
  const auto goes_to_file = [](Streams streams) { return streams != Streams::kNone; };
  const bool needs_files =
      std::any_of(settings.output.tee.begin(), settings.output.tee.end(), goes_to_file) ||
      std::any_of(settings.output.redirect.begin(), settings.output.redirect.end(), goes_to_file);
  if (!needs_files) return "";
  return private_log_folder(host.environment, host.job_suffix);
}

// As torchrun names teed lines, unless the user has a template.
std::string tee_prefix(const EnvMap& environment) {
  const auto wanted = environment.find("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
  return wanted != environment.end() && !wanted->second.empty() ? wanted->second
                                                                : "[${role_name}${local_rank}]:";
}

// DeepSpeed's workers find modules beside the place of the launch, as under the peer.
void append_current_folder(EnvMap& env) {
  std::error_code failure;  // it is gone: there are no modules in it
  const std::string folder = fs::current_path(failure).string();
  if (failure) return;
  std::string& path = env["PYTHONPATH"];
  path += (path.empty() || path.ends_with(':') ? "" : ":") + folder;
}

// As far as it is known before the machines have met: for the dry run.
void place_workers(JobSpec& spec, const MachinesSettings& machines) {
  spec.identity.num_nodes = machines.num_machines;
  spec.identity.node_rank = machines.machine_rank.value_or(0);
  spec.identity.master_addr = machines.address;
  spec.identity.master_port = machines.port;
  spec.identity.run_id = machines.run_id;
  for (WorkerSpec& worker : spec.workers) {
    worker.global_rank =
        spec.identity.node_rank * spec.identity.local_world_size + worker.local_rank;
  }
}

JobSpec make_spec(const CommandLine& line,
                  const LaunchSettings& settings,
                  const WorkerCommand& command,
                  const AffinityPlan& cores,
                  const LaunchHost& host) {
  JobSpec spec;
  spec.job_id = job_id(name_of_job(line, settings, command), host.job_suffix);
  const bool is_simple = settings.num_processes == 1 && !settings.is_like_torchrun() &&
                         !meets_others(settings.start) && !line.is_torchrun;
  spec.env_mode = is_simple ? EnvMode::kSimple : EnvMode::kDistributed;
  spec.env = base_environment(host.environment, settings, spec.env_mode, command.is_python);
  auto signals = line.text("signals_to_handle");
  if (!signals && settings.strict_compat && !is_simple) signals = kSignalsOfTorchrun;
  if (signals) spec.env["TORCHELASTIC_SIGNALS_TO_HANDLE"] = *signals;
  if (settings.strategies.deepspeed) append_current_folder(spec.env);
  spec.identity.world_size = settings.world_size();
  spec.identity.local_world_size = settings.num_processes;
  spec.identity.max_restarts = settings.max_restarts;
  spec.identity.role = settings.role;
  spec.identity.job_id = spec.job_id;
  // torchrun --standalone draws a name, whatever --rdzv_id says.
  spec.identity.run_id =
      line.is_on("standalone") ? spec.job_id : line.text("rdzv_id").value_or(line.run_id);
  spec.workers = make_workers(settings, command, cores, host);
  if (settings.stop_grace_seconds) spec.stop.grace = milliseconds(*settings.stop_grace_seconds);
  if (settings.linger_seconds) spec.stop.linger = milliseconds(*settings.linger_seconds);
  spec.hang = settings.hang;
  spec.preflight = settings.preflight;
  spec.restart.max_restarts = settings.max_restarts;
  spec.log.dir = choose_log_dir(settings, host);
  // The nodes of an allocation share the folder that was named.
  const auto* nodes = std::get_if<ElasticSettings>(&settings.start);
  const bool shares_folder =
      nodes != nullptr && nodes->meeting != Meeting::kEndpoint && nodes->meeting != Meeting::kAgent;
  if (shares_folder && !settings.output.log_dir.empty() && !nodes->node_id.empty())
    spec.log.dir += "/" + nodes->node_id;
  if (spec.log.dir.empty() && !host.private_base.empty()) {
    spec.log.error_dir = host.private_base + "/accel-" + spec.job_id;
  }
  spec.log.prefix = line.is_on("log_prefix");
  if (line.has("tee") && !is_simple && !spec.log.prefix)
    spec.log.prefix_template = tee_prefix(host.environment);
  spec.log.rotation = settings.output.rotation;
  spec.log.overflow = settings.output.overflow;
  spec.log.merge_stderr = line.is_on("log_merge_stderr");

  // Several nodes: no worker has this terminal, and which one is rank 0 changes.
  // With --stop_with_stdin there is nothing to read.
  const bool has_terminal = !meets_others(settings.start) && !line.is_on("stop_with_stdin");
  const auto* machines = std::get_if<MachinesSettings>(&settings.start);
  const bool is_main = machines != nullptr && machines->is_main();
  spec.console.stdin_to_rank0 = has_terminal || (is_main && !line.is_on("stop_with_stdin"));
  const bool may_use_terminal = has_terminal && host.stdout_is_terminal && !line.is_on("no_pty");
  spec.console.foreground = may_use_terminal && host.stdin_is_terminal &&
                            settings.num_processes == 1 && spec.log.dir.empty();
  spec.console.use_pty = may_use_terminal && !spec.console.foreground;

  spec.store.enabled = !is_simple;
  spec.store.exact_port = settings.main_process_port.value_or(0) != 0;
  spec.store.port =
      static_cast<std::uint16_t>(settings.main_process_port.value_or(kDefaultMainPort));
  spec.identity.master_port = spec.store.port;
  if (machines != nullptr) place_workers(spec, *machines);
  return spec;
}

// Workers of one machine are told the port of their store, so any will do when the named one is taken (CLI27). torchrun
// fails when its own flag named it.
void settle_port(const LaunchSettings& settings, const LaunchHost& host, LaunchPlan& plan) {
  const bool is_alone = std::holds_alternative<OneMachine>(settings.start);
  supervisor::StorePolicy& store = plan.spec.store;
  if (!is_alone || !store.enabled || !store.exact_port) return;
  store.exact_port = false;
  const std::optional<Error> fault = host.port_fault ? host.port_fault(store.port) : std::nullopt;
  if (!fault) return;
  const Program program = host.is_torchrun ? Program::kTorchrun : Program::kLaunch;
  plan.notices.push_back("the store takes a free port: " + fault->message() + " (" +
                         spelled("main_process_port", program) +
                         " 0 asks for a free one, without this notice)");
  store.port = plan.spec.identity.master_port = 0;
}

// GPUs that fail when they speak to each other directly are kept from it.
void keep_gpus_apart(const LaunchSettings& settings, const LaunchHost& host, LaunchPlan& plan) {
  const bool uses_gpus = !settings.use_cpu && !settings.accelerator &&
                         (settings.multi_gpu || settings.strategies.is_any());
  if (!uses_gpus || !host.nvidia) return;
  std::string names;
  for (const auto& [name, value] : peer_access_variables(host.nvidia(), plan.spec.env)) {
    plan.spec.env[name] = value;
    names += (names.empty() ? "" : " and ") + name + "=" + value;
  }
  if (names.empty()) return;
  plan.notices.push_back(
      "GeForce RTX 40 GPUs do not support communication with each other (P2P) or over InfiniBand "
      "before driver "
      "550.40.07: " +
      names + " is set; upgrade the driver, which makes it faster");
}

TorchrunView view_for_torchrun(const CommandLine& line,
                               const LaunchHost& host,
                               const ConfigFile* file) {
  const auto num_cpus = [&host] {
    const Result<Topology> topology = host.topology(Caches::kLeftOut);
    if (!topology) return 1;
    int num = 0;
    for (const Core& core : topology->cores) num += static_cast<int>(core.cpus.size());
    return std::max(1, num);
  };
  return {.environment = host.environment,
          .num_gpus = host.num_gpus,
          .num_cpus = num_cpus,
          .is_torchrun = host.is_torchrun,
          .file = file,
          .placed_by = who_places_machines(line, file)};
}

SlurmView view_of_slurm(const LaunchHost& host, Faults& faults) {
  SlurmView view;
  auto place = read_slurm(host.environment);
  if (place) {
    view.place = *std::move(place);
  } else {
    faults.add(std::move(place).error());
  }
  const auto folder = host.environment.find(kSlurmFolderVariable);
  if (folder != host.environment.end()) view.starter_folder = folder->second;
  view.unique = host.job_suffix;
  return view;
}

// What a job of SageMaker is told is what one worker here would be.
Result<LaunchPlan> plan_for_sagemaker(const CommandLine& line,
                                      const ConfigFile& file,
                                      const LaunchHost& host,
                                      LaunchPlan plan) {
  if (line.script.empty()) {
    return Error(ErrorCode::kUsage,
                 "there is no script to start",
                 std::string(name_of(line.program())) + " " + line.spelled("config_file") + " " +
                     file.path + " train.py");
  }
  const auto settings = merge_settings(line, &file, {}, host.num_gpus, plan.notices);
  if (!settings) return settings.error();
  const EnvMap variables = base_environment({}, *settings, EnvMode::kSimple, true);
  auto submission = plan_submission(line, file, variables, host.environment, host.job_suffix);
  if (!submission) return std::move(submission).error();
  plan.notices.insert(plan.notices.end(), submission->notices.begin(), submission->notices.end());
  plan.start = *std::move(submission);
  plan.quiet = line.is_on("quiet");
  return plan;
}

// Inside a container of SageMaker the hosts of its job are the machines.
void enter_training_job(CommandLine& line,
                        const ConfigFile* file,
                        const LaunchHost& host,
                        Faults& faults) {
  const auto here = read_training_container(host.environment, host.resource_config);
  if (!here) return faults.add(here.error());
  if (*here) join_training_job(line, file, **here, host.environment);
}

// Makes the job of this machine's workers what its start wants; `start` learns what only the whole plan knows.
struct Starter {
  LaunchPlan& plan;
  const LaunchSettings& settings;
  const CommandLine& line;
  const LaunchHost& host;

  Result<void> operator()(OneMachine&) const { return {}; }
  Result<void> operator()(Submission&) const { return {}; }

  Result<void> operator()(MachinesSettings& machines) const {
    machines.program = line.program();
    machines.device = compute_device(line, settings, [this] { return has_any_device(host); });
    return {};
  }

  Result<void> operator()(ElasticSettings& nodes) const {
    nodes.allocation_end = plan.allocation_end;
    nodes.program = line.program();
    return {};
  }

  // Where another program starts the workers, it becomes the process of the job.
  Result<void> operator()(MpiSettings& mpi) const {
    if (auto handed = hand_to_mpirun(plan.spec, mpi, host); !handed) return handed;
    plan.worker_names = {plan.spec.workers.front().argv.front()};
    return {};
  }

  Result<void> operator()(PodStart&) const {
    plan.spec.workers.front().is_starter = true;
    plan.worker_names = {"xla_dist"};
    return {};
  }

  Result<void> operator()(HostSettings& hosts) const {
    auto handed = hand_to_hosts(plan.spec, hosts, line, host, plan.notices);
    for (const HostSlots& one : hosts.hosts) plan.hosts.push_back(one.name);
    plan.shares.clear();
    return handed;
  }
};

// With those of older versions. One that nobody knows chooses nothing: whoever mistypes it wants to see them all.
GivenFlags typed_flags(const CommandLine& line, const std::vector<std::string>& arguments) {
  GivenFlags flags = line.given;
  for (const std::string& word : arguments) {
    const auto is_it = [name = bare_name(word)](const RetiredFlag& flag) {
      return flag.name == name;
    };
    if (word.starts_with("--") && std::ranges::any_of(retired_flags(), is_it))
      flags.try_emplace(bare_name(word));
  }
  return flags;
}

// A worker that has the terminal itself may draw on it at any time. Of several machines only the first one shows the line; its launcher
// knows the steps of its own workers.
Result<ProgressWhen> choose_progress(const CommandLine& line,
                                     const EnvMap& environment,
                                     LaunchPlan& plan) {
  const std::string variable = value_in(environment, kProgressVariable);
  if (!variable.empty() && !find_choice(kProgressChoices, variable))
    return Error(ErrorCode::kEnvInvalid,
                 std::string(kProgressVariable) + " is '" + printable(variable) + "', expected " +
                     listed_choices(kProgressChoices),
                 "set " + std::string(kProgressVariable) + " to off, or unset it");
  const std::string word =
      lowercase(line.text("progress_line").value_or(variable.empty() ? "auto" : variable));
  const bool is_possible = has_own_shim(plan.start) && !plan.spec.console.foreground;
  const bool is_asked_for = line.has("progress_line") && word == "on";
  if (is_asked_for && !is_possible)
    return usage_error(
        line.spelled("progress_line") + " on: " +
            (plan.spec.console.foreground ? "a worker alone has the terminal itself"
                                          : "this launcher does not start the workers itself"),
        "leave it out");
  const auto* machines = std::get_if<MachinesSettings>(&plan.start);
  if (machines != nullptr && machines->machine_rank.value_or(0) != 0) {
    if (is_asked_for) plan.notices.push_back("machine 0 shows the progress line, not this one");
    return ProgressWhen::kOff;
  }
  if (!is_possible || word == "off" || (plan.quiet && word != "on")) return ProgressWhen::kOff;
  return word == "on" ? ProgressWhen::kOn : ProgressWhen::kAuto;
}

}  // namespace

Result<LaunchPlan> resolve_launch(const std::vector<std::string>& arguments,
                                  const LaunchHost& host) {
  Result<CommandLine> parsed =
      parse_command_line(arguments, host.is_torchrun ? Program::kTorchrun : Program::kLaunch);
  if (!parsed) return std::move(parsed).error();
  CommandLine& line = *parsed;
  LaunchPlan plan;
  if (line.is_on("help")) {
    plan.answer = launch_help(typed_flags(line, arguments), line.script, host.is_torchrun);
    return plan;
  }
  if (line.is_on("version")) {
    plan.answer = "accel " ACCEL_VERSION "\n";
    return plan;
  }
  Result<std::optional<ConfigFile>> config = find_config(line, host);
  if (!config) return std::move(config).error();
  const ConfigFile* file = config->has_value() ? &**config : nullptr;
  if (file != nullptr) {
    plan.config_file = file->path;
    plan.notices = texts_of(file->notices);
  }
  plan.notices.insert(plan.notices.end(), line.notices.begin(), line.notices.end());

  if (file != nullptr && file->sagemaker) return plan_for_sagemaker(line, *file, host, plan);

  Faults faults;
  const bool is_port_typed = line.has("master_port") || line.has("main_process_port");
  const TorchrunView view = view_for_torchrun(line, host, file);
  enter_training_job(line, file, host, faults);
  translate_torchrun(line, view, plan.notices, faults);
  const SlurmView slurm = view_of_slurm(host, faults);
  Result<LaunchSettings> settings = merge_settings(line, file, slurm, host.num_gpus, plan.notices);
  if (settings) {
    fall_back_to_cpu(line, host, *settings, plan.notices, faults);
  } else {
    faults.add(settings.error());
  }
  const Result<WorkerCommand> command = settings && settings->tpu
                                            ? find_tpu_command(line, *settings, host)
                                            : find_command(line, host.environment);
  if (!command) faults.add(command.error());
  if (!faults.empty()) return faults.merged();

  const bool has_cores = !std::holds_alternative<HostSettings>(settings->start);
  Result<AffinityPlan> cores =
      has_cores ? divide_cores(*settings, line, host, plan.notices) : AffinityPlan();
  if (!cores) return std::move(cores).error();
  plan.shares = cores->workers;
  plan.spec = make_spec(line, *settings, *command, *cores, host);
  if (!host.is_torchrun || !is_port_typed) settle_port(*settings, host, plan);
  keep_gpus_apart(*settings, host, plan);
  const bool is_elastic = std::holds_alternative<ElasticSettings>(settings->start);
  const bool is_here = !is_elastic && !has_starter(settings->start);
  const WorkerPlace place = is_here ? WorkerPlace::kHere : WorkerPlace::kElsewhere;
  if (auto applied = apply_spec_flags(line, place, plan.spec, plan.notices); !applied)
    return std::move(applied).error();
  plan.watch = settings->watch;
  if (slurm.place) plan.allocation_end = slurm.place->end;
  plan.start = settings->start;
  if (auto described = std::visit(Starter{plan, *settings, line, host}, plan.start); !described)
    return std::move(described).error();
  // Its starter has told them already.
  if (!slurm.starter_folder.empty() && is_elastic) plan.notices.clear();
  plan.quiet = line.is_on("quiet");
  const auto progress = choose_progress(line, host.environment, plan);
  if (!progress) return progress.error();
  plan.progress = *progress;
  plan.stop_with_stdin = line.is_on("stop_with_stdin");
  plan.debug = settings->debug;
  plan.dry_run = line.is_on("dry_run");
  plan.inherited = host.environment;
  return plan;
}

}  // namespace accel::launcher
