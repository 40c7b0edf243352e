// The merge, value by value. Rules that tie several values together (--multi_gpu wants two
// processes, one machine has machine rank 0) come after the single values, in check_*().

#include "launcher/plan/launch_settings.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <utility>

#include "launcher/devices/gpu_list.h"
#include "launcher/flags/preflight_flag.h"
#include "launcher/start/machines/settings/machines_request.h"
#include "launcher/start/mpi/mpi_choice.h"
#include "launcher/start/mpi/mpi_launch.h"
#include "launcher/start/slurm/slurm_machines.h"
#include "launcher/start/ssh/host_choice.h"
#include "launcher/start/tpu/tpu_choice.h"
#include "launcher/text/faults.h"
#include "launcher/workers/node_range.h"
#include "launcher/workers/strategy_rules.h"
#include "runtime/text/endpoint_text.h"
#include "runtime/text/letter_case.h"

namespace accel::launcher {
namespace {

constexpr int kMaxPort = 65535;
constexpr int kAnyInt = 2'147'483'647;
constexpr int kMostRestarts = 1'000'000;
constexpr int kMostThreads = 4096;

Error config_fault(const ConfigFile& file,
                   std::string_view key,
                   int value,
                   const std::string& expected) {
  return Error(ErrorCode::kConfigInvalidValue,
               file.path + ": " + std::string(key) + " is " + std::to_string(value) +
                   ", expected " + expected,
               "change " + std::string(key) + " in " + file.path);
}

// "0", "0,1", "GPU-8f2a,GPU-11c0", "MIG-GPU-8f2a/1/0": names between commas.
bool is_id_list(std::string_view text) {
  constexpr std::string_view kOthers = "-_./";
  char before = ',';
  for (char c : text) {
    const bool is_of_name = std::isalnum(static_cast<unsigned char>(c)) != 0 ||
                            kOthers.find(c) != std::string_view::npos;
    if (c == ',' ? before == ',' : !is_of_name) return false;
    before = c;
  }
  return before != ',';
}

// Merges one value after the other; faults are collected.
class Merge {
 public:
  Merge(const CommandLine& line,
        const ConfigFile* file,
        const SlurmView& slurm,
        const std::function<int()>& num_gpus,
        std::vector<std::string>& notices)
      : line_(line), file_(file), slurm_(slurm), ask_num_gpus_(num_gpus), notices_(notices) {}

  Result<LaunchSettings> run() {
    choose_hardware();
    settings_.strategies = choose_strategies(strategy_request(), notices_, faults_);
    choose_machines();
    choose_num_processes();
    if (elastic() == nullptr && faults_.empty())
      check_sizes(settings_.strategies, num_ranks(), faults_);
    choose_computing();
    choose_dynamo();
    settings_.output = choose_output(line_, settings_.num_processes, notices_, faults_);
    choose_failures();
    choose_to_be_watched();
    if (!faults_.empty()) return faults_.merged();
    return std::move(settings_);
  }

 private:
  // The flag if given, else the file's value if it is in range.
  std::optional<int> integer(std::string_view name,
                             std::optional<int> ConfigFile::*key,
                             int least,
                             int most) {
    if (line_.has(name)) return integer_flag(line_, name, least, most, faults_);
    if (file_ == nullptr || !(file_->*key)) return std::nullopt;
    const int value = *(file_->*key);
    if (value >= least && value <= most) return value;
    faults_.add(config_fault(
        *file_,
        name,
        value,
        "a whole number from " + std::to_string(least) + " to " + std::to_string(most)));
    return std::nullopt;
  }

  bool boolean(std::string_view name, std::optional<bool> ConfigFile::*key) {
    if (line_.has(name)) return line_.is_on(name);
    return file_ != nullptr && (file_->*key).value_or(false);
  }

  [[nodiscard]] StrategyRequest strategy_request() const {
    return {line_, file_, settings_.multi_gpu};
  }

  void unsupported(std::string message, std::string remedy = {}) {
    faults_.add(Error(ErrorCode::kUnsupported, std::move(message), std::move(remedy)));
  }

  // nullptr: another start.
  MachinesSettings* machines() { return std::get_if<MachinesSettings>(&settings_.start); }
  [[nodiscard]] const ElasticSettings* elastic() const {
    return std::get_if<ElasticSettings>(&settings_.start);
  }

  // Of the whole job, as far as they are known.
  [[nodiscard]] int num_ranks() const {
    const auto* mpi = std::get_if<MpiSettings>(&settings_.start);
    return mpi == nullptr ? settings_.world_size() : mpi->num_processes.value_or(1);
  }

  int num_gpus() {
    if (!num_gpus_) num_gpus_ = ask_num_gpus_ ? ask_num_gpus_() : 0;
    return *num_gpus_;
  }

  void choose_machines() {
    constexpr int kMostMachines = 1'000'000;
    MachinesRequest said;
    said.num_machines =
        integer("num_machines", &ConfigFile::num_machines, 1, kMostMachines).value_or(1);
    said.rank = integer("machine_rank", &ConfigFile::machine_rank, 0, kMostMachines);
    said.address = line_.text("main_process_ip");
    if (!said.address && file_ != nullptr) said.address = file_->main_process_ip;
    if (said.address) said.address = without_brackets(*said.address);
    said.port = integer("main_process_port", &ConfigFile::main_process_port, 0, kMaxPort);
    said.backend = line_.text("rdzv_backend");
    if (!said.backend && file_ != nullptr) said.backend = file_->rdzv_backend;
    said.is_simple = !settings_.is_like_torchrun() && !line_.is_torchrun;
    settings_.main_process_port = said.port;
    if (const auto hostfile = mpi_hostfile(line_, file_, notices_, faults_)) {
      return choose_mpi(
          {.hostfile = *hostfile, .num_machines = said.num_machines, .main_address = said.address});
    }
    if (choose_hosts(said.num_machines, said.address)) return;
    if (settings_.tpu && settings_.tpu->pod) {
      settings_.start = PodStart();
      return;
    }
    if (settings_.tpu && said.num_machines > 1) {
      return unsupported(
          "--tpu starts torch_xla on one machine, and " + line_.spelled("num_machines") + " is " +
              std::to_string(said.num_machines),
          "run the line with " + line_.spelled("num_machines") + " 1 on each of them");
    }
    const auto of_slurm = choose_slurm_machines(line_, slurm_.place, said.num_machines);
    if (!of_slurm) return faults_.add(of_slurm.error());
    if (of_slurm->rank) said.rank = of_slurm->rank;
    if (of_slurm->are_nodes) {
      num_slurm_nodes_ = said.num_machines;
    } else if (auto chosen = launcher::choose_machines(said, line_, notices_, faults_)) {
      settings_.start = *std::move(chosen);
      return;
    }
    if (auto nodes = choose_nodes(line_, slurm_, faults_)) settings_.start = *std::move(nodes);
  }

  // mpirun is one process here; how many ranks it starts is its business alone.
  void choose_mpi(MpiRequest request) {
    is_mpi_ = true;
    request.num_processes = integer("num_processes", &ConfigFile::num_processes, 1, kAnyInt);
    request.main_port = settings_.main_process_port;
    if (!request.num_processes) refuse_undecided_file();
    auto planned = plan_mpi(request);
    if (!planned) return faults_.add(std::move(planned).error());
    start_by_mpirun(*std::move(planned));
  }

  void start_by_mpirun(MpiSettings settings) {
    settings_.num_on_machine = settings.num_on_machine();
    settings_.is_bound_by_mpirun = true;
    settings_.start = std::move(settings);
  }

  // False: the launch does not go through a hostfile.
  bool choose_hosts(int machines, const std::optional<std::string>& address) {
    const HostRequest request = {
        .line = line_,
        .file = file_,
        .num_machines = machines,
        .num_processes =
            [this] { return integer("num_processes", &ConfigFile::num_processes, 1, kAnyInt); },
        .main_address = address,
        .main_port = settings_.main_process_port,
        .is_in_allocation = slurm_.place.has_value()};
    auto chosen = launcher::choose_hosts(request, notices_, faults_);
    if (!chosen) return false;
    if (chosen->transport == HostTransport::kMpirun) {
      is_mpi_ = true;
      start_by_mpirun(plan_mpi_hosts(*chosen));
      return true;
    }
    settings_.num_processes = settings_.num_on_machine = chosen->num_workers();
    settings_.start = *std::move(chosen);
    return true;
  }

  void choose_hardware() {
    const bool cpu_flag = line_.is_on("cpu");
    settings_.use_cpu = line_.has("cpu") ? cpu_flag : boolean("use_cpu", &ConfigFile::use_cpu);
    settings_.multi_gpu = line_.is_on("multi_gpu");
    check_single_choice();
    if (file_ != nullptr) settings_.accelerator = find_accelerator(file_->distributed_type);
    if (file_ != nullptr && !settings_.multi_gpu && !settings_.use_cpu) {
      const std::string& type = file_->distributed_type;
      const bool is_strategy =
          line_.is_on("use_fsdp") || line_.is_on("use_deepspeed") || line_.is_on("use_megatron_lm");
      const bool is_device = type == "MULTI_GPU" || settings_.accelerator != nullptr;
      settings_.multi_gpu = is_device && !is_strategy && !line_.is_on("tpu");
    }
    const bool has_other = settings_.use_cpu || settings_.multi_gpu || line_.is_on("use_fsdp") ||
                           line_.is_on("use_deepspeed") || line_.is_on("use_megatron_lm");
    settings_.tpu = choose_tpu(line_, file_, has_other, faults_);
    settings_.is_tpu = settings_.tpu.has_value();
    settings_.gpu_ids = line_.text("gpu_ids").value_or(
        file_ != nullptr && file_->gpu_ids ? *file_->gpu_ids : "all");
    settings_.gpu_ids = without_blanks(settings_.gpu_ids);
    if (settings_.gpu_ids.empty()) settings_.gpu_ids = "all";
    if (!is_id_list(settings_.gpu_ids)) {
      faults_.add(Error(ErrorCode::kInvalidArgument,
                        line_.spelled("gpu_ids") + " is '" + settings_.gpu_ids +
                            "', expected all, or ids as in 0,1",
                        "give " + line_.spelled("gpu_ids") + " all, or ids as in 0,1"));
    }
  }

  void check_single_choice() {
    std::string given;
    int num_given = 0;
    for (const char* name :
         {"cpu", "multi_gpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm"}) {
      if (!line_.is_on(name)) continue;
      given += (given.empty() ? "" : ", ") + line_.spelled(name);
      ++num_given;
    }
    if (num_given < 2) return;
    // The peer's Megatron-LM goes with --multi_gpu, and with FSDP of its own.
    if (line_.is_on("use_megatron_lm") && num_given == 2 && line_.is_on("multi_gpu")) return;
    faults_.add(Error(ErrorCode::kUsage,
                      "You can only use one of `--cpu`, `--multi_gpu`, `--tpu`, `--use_deepspeed`, "
                      "`--use_fsdp` at a time.",
                      line_.is_on("cpu")
                          ? "leave --cpu out; where there are GPUs that shall not be used, say "
                            "`use_cpu: true` in a configuration file, or set CUDA_VISIBLE_DEVICES="
                          : "leave one out of " + given));
  }

  // How many workers find a GPU of their own, or one that --gpu_ids shares out.
  int num_usable_gpus() { return num_gpu_places(settings_.gpu_ids, num_gpus()); }

  void choose_num_processes() {
    if (is_mpi_ || std::holds_alternative<HostSettings>(settings_.start) || settings_.tpu) return;
    std::optional<int> number = requested_num_processes();
    if (!number) refuse_undecided_file();
    const bool is_undecided = file_ == nullptr && !line_.has("num_processes");
    if (is_undecided) {
      number = settings_.use_cpu ? 1 : std::max(1, num_usable_gpus());
      // Of several nodes each decides for itself, and the number of machines is not 1.
      if (!meets_others(settings_.start))
        notices_.push_back(
            "nothing says how many workers to start: " + line_.spelled("num_processes") + " is " +
            std::to_string(*number) + ", " + line_.spelled("num_machines") + " 1, " +
            line_.spelled("mixed_precision") + " " + line_.text("mixed_precision").value_or("no") +
            ", " + line_.spelled("dynamo_backend") + " " +
            line_.text("dynamo_backend").value_or("no"));
    }
    settings_.num_processes = settings_.num_on_machine = number.value_or(1);
    const bool is_strategy = settings_.strategies.is_any();
    if (file_ == nullptr && !line_.is_torchrun && !is_strategy && !settings_.use_cpu &&
        settings_.num_processes > 1 && num_gpus() > 1) {
      settings_.multi_gpu = true;
    }
    if (!number) return;
    if (settings_.multi_gpu) return check_gpus();
    // Without any GPU the workers compute on the CPU.
    // Of a job that others start, the GPUs of this machine say nothing.
    const bool is_here = starts_workers_here(settings_.start);
    if (!settings_.use_cpu && (is_strategy || is_here) && num_gpus() > 0) check_num_gpus();
  }

  void refuse_undecided_file() {
    if (file_ == nullptr || line_.has("num_processes") || !faults_.empty()) return;
    faults_.add(Error(ErrorCode::kConfigInvalidValue,
                      "You need to manually pass in `--num_processes` using this config yaml.",
                      "give " + line_.spelled("num_processes") +
                          " N, or add `num_processes: N` to " + file_->path));
  }

  std::optional<int> requested_num_processes() {
    const std::optional<int> number =
        integer("num_processes", &ConfigFile::num_processes, 1, kAnyInt);
    const int given = number.value_or(1);
    MachinesSettings* const divided = line_.counts_per_machine ? nullptr : machines();
    const int here = divided != nullptr ? std::max(1, given / divided->num_machines) : given;
    if (divided != nullptr && number) divided->num_processes = given;
    if (!number) return std::nullopt;
    if (divided != nullptr) note_share(given, divided->num_machines, here);
    if (machines() == nullptr && !line_.counts_per_machine) return share_of_node(given);
    if (here <= kMaxProcesses) return here;
    return too_many_here(given);
  }

  std::optional<int> too_many_here(int given) {
    faults_.add(Error(ErrorCode::kInvalidArgument,
                      line_.spelled("num_processes") + " is " + std::to_string(given) +
                          ", but at most " + std::to_string(kMaxProcesses) +
                          " workers run on one machine (each takes descriptors and buffers of the "
                          "supervisor)",
                      "give " + line_.spelled("num_processes") +
                          " of at most the cores or GPUs of this machine"));
    return std::nullopt;
  }

  [[nodiscard]] NodeRange num_nodes() const {
    if (num_slurm_nodes_ > 1) return {num_slurm_nodes_, num_slurm_nodes_};
    if (elastic() == nullptr) return {};
    if (const auto said = parse_node_range(line_.text("nnodes").value_or(""))) return *said;
    const int of_slurm = elastic()->max_nodes;  // all of them
    return {of_slurm, of_slurm};
  }

  [[nodiscard]] std::string source_of_count() const {
    if (line_.has("num_processes") || file_ == nullptr) return line_.spelled("num_processes");
    return "num_processes of " + file_->path;
  }

  // --num_processes counts those of all nodes.
  std::optional<int> share_of_node(int number) {
    const NodeRange nodes = num_nodes();
    const auto share = share_of_each_node(number,
                                          nodes,
                                          {.total = source_of_count(),
                                           .nodes = "--nnodes " + line_.text("nnodes").value_or(""),
                                           .of_each = line_.spelled("nproc_per_node")});
    if (!share) {
      faults_.add(share.error());
      return std::nullopt;
    }
    note_share(number, nodes.least, *share);
    return *share <= kMaxProcesses ? std::optional(*share) : too_many_here(number);
  }

  // On one node of the job, where it is known which is the first.
  void note_share(int number, int nodes, int share) {
    const bool is_another = machines() != nullptr
                                ? machines()->machine_rank.value_or(0) > 0
                                : elastic() != nullptr && elastic()->meeting == Meeting::kNode;
    if (nodes == 1 || number % nodes != 0 || is_another) return;
    notices_.push_back(source_of_count() + " " + std::to_string(number) + " counts those of all " +
                       std::to_string(nodes) + " nodes: " + std::to_string(share) + " on each");
  }

  void check_gpus() {
    if (settings_.world_size() < 2 && line_.is_on("multi_gpu")) {
      faults_.add(Error(ErrorCode::kUsage,
                        "You need to use at least 2 processes to use `--multi_gpu`.",
                        "give " + line_.spelled("num_processes") + " 2 or more, or leave " +
                            line_.spelled("multi_gpu") + " out"));
      return;
    }
    const bool is_single_id =
        settings_.gpu_ids != "all" && settings_.gpu_ids.find(',') == std::string::npos;
    if (file_ != nullptr && is_single_id && machines() == nullptr) {
      faults_.add(
          Error(ErrorCode::kUsage,
                "Less than two GPU ids were configured and tried to run on multiple GPUs. Please "
                "ensure at least two are specified for `--gpu_ids`, or use `--gpu_ids='all'`.",
                "give " + line_.spelled("gpu_ids") + " all, or two ids or more"));
      return;
    }
    check_num_gpus();
  }

  void check_num_gpus() {
    if (settings_.accelerator != nullptr) return;  // only GPUs of NVIDIA can be counted
    const int gpus = num_usable_gpus();
    const auto fault = gpu_fault(settings_.num_processes, gpus, line_.program());
    if (!fault) return;
    // Many a script under torchrun computes on the CPU, and torchrun has no flag that says so.
    if (line_.is_torchrun && !settings_.is_like_torchrun())
      return notices_.push_back(warn_of_shared_gpu(settings_.num_processes, gpus));
    faults_.add(*fault);
  }

  void choose_computing() {
    if (line_.has("mixed_precision")) {
      settings_.mixed_precision = choice_flag(line_, "mixed_precision", faults_).value_or("no");
    } else if (file_ != nullptr) {
      settings_.mixed_precision = file_->mixed_precision.value_or("no");
    }
    if (settings_.mixed_precision == "fp8") {
      EnvMap& variables = settings_.strategies.variables;
      variables.merge(fp8_variables(strategy_request(), faults_));
      const auto backend = variables.find("ACCELERATE_FP8_BACKEND");
      if (backend != variables.end() && backend->second == "MSAMP")
        notices_.emplace_back("fp8_backend msamp is deprecated, as Accelerate says: take te or ao");
    }
    if (settings_.tpu)
      settings_.device_variables = tpu_variables(*settings_.tpu, settings_.mixed_precision);
    settings_.num_cpu_threads =
        integer_flag(line_, "num_cpu_threads_per_process", 1, kMostThreads, faults_);
    settings_.enable_cpu_affinity =
        boolean("enable_cpu_affinity", &ConfigFile::enable_cpu_affinity);
    choose_affinity();
    settings_.strict_compat = line_.is_on("strict_compat");
    settings_.tells_accelerate = !line_.is_torchrun || file_ != nullptr || says_accelerate();
    settings_.debug = boolean("debug", &ConfigFile::debug);
    settings_.role = line_.text("role").value_or("default");
  }

  void choose_affinity() {
    constexpr std::pair<std::string_view, AffinityMode> kModes[] = {
        {"node", AffinityMode::kNode},
        {"socket", AffinityMode::kSocket},
        {"exclusive", AffinityMode::kExclusive},
        {"core-complex", AffinityMode::kL3}};
    if (settings_.enable_cpu_affinity) settings_.affinity = AffinityMode::kExclusive;
    const auto binding = choice_flag(line_, "numa_binding", faults_);
    for (const auto& [name, mode] : kModes) {
      if (binding == name) settings_.affinity = mode;
    }
  }

  // Something that only a program of Accelerate or libaccel would read was asked for.
  [[nodiscard]] bool says_accelerate() const {
    constexpr std::string_view kFlags[] = {"cpu",
                                           "mixed_precision",
                                           "dynamo_backend",
                                           "dynamo_mode",
                                           "use_fsdp",
                                           "use_deepspeed",
                                           "use_megatron_lm"};
    return std::ranges::any_of(kFlags, [&](std::string_view flag) { return line_.has(flag); });
  }

  void choose_dynamo() {
    const DynamoSettings none;
    const DynamoSettings& said = file_ != nullptr ? file_->dynamo : none;
    const auto text = [&](std::string_view name, const std::optional<std::string>& otherwise) {
      return line_.has(name) ? choice_flag(line_, name, faults_) : otherwise;
    };
    const auto is_on = [&](std::string_view name, std::optional<bool> otherwise) {
      return line_.has(name) ? line_.is_on(name) : otherwise.value_or(false);
    };
    DynamoOptions& dynamo = settings_.dynamo;
    dynamo.backend = uppercase(text("dynamo_backend", said.backend).value_or("no"));
    dynamo.mode = text("dynamo_mode", said.mode).value_or("default");
    dynamo.use_fullgraph = is_on("dynamo_use_fullgraph", said.use_fullgraph);
    dynamo.use_dynamic = is_on("dynamo_use_dynamic", said.use_dynamic);
    dynamo.use_regional_compilation =
        is_on("dynamo_use_regional_compilation", said.use_regional_compilation);
  }

  void choose_failures() {
    settings_.max_restarts =
        integer_flag(line_, "max_restarts", 0, kMostRestarts, faults_).value_or(0);
    settings_.stop_grace_seconds = seconds_flag(line_, "stop_grace", faults_);
    settings_.linger_seconds = seconds_flag(line_, "linger", faults_);
    (void)seconds_flag(line_, "monitor_interval", faults_);  // checked, and not needed
    choose_hang_timeout();
    choose_preflight();
  }

  // Who starts workers elsewhere hears nothing of them; agents have metrics of their own.
  void choose_to_be_watched() {
    settings_.watch = choose_watch(line_, faults_);
    if (!settings_.watch.is_any() || has_own_shim(settings_.start)) return;
    const char* const flag = settings_.watch.metrics ? "metrics_port" : "dashboard";
    unsupported(
        line_.spelled(flag) +
            " is for workers that this launcher starts itself, and others start these",
        "leave it out; jobs of agents and of SLURM's nodes are shown by agents (metrics_listen and "
        "dashboard_listen in agent.yaml)");
  }

  void choose_preflight() {
    supervisor::Milliseconds limit = supervisor::PreflightCheck{}.limit;
    if (const auto seconds = seconds_flag(line_, "preflight_seconds", faults_))
      limit = std::chrono::ceil<supervisor::Milliseconds>(std::chrono::duration<double>(*seconds));
    if (limit.count() == 0) {
      faults_.add(Error(ErrorCode::kInvalidArgument,
                        line_.spelled("preflight_seconds") + " is '0', expected a time above 0"));
    }
    const auto given = line_.repeated.find("preflight");
    if (given == line_.repeated.end()) return;
    for (const std::string& text : given->second) {
      auto check = parse_preflight(text, limit);
      if (check) {
        settings_.preflight.push_back(*std::move(check));
      } else {
        faults_.add(std::move(check).error());
      }
    }
  }

  void choose_hang_timeout() {
    const std::string text = line_.text("hang_timeout").value_or("off");
    if (text == "off") return;
    if (text == "auto") {
      settings_.hang.mode = supervisor::HangMode::kAuto;
      return;
    }
    const auto seconds = seconds_flag(line_, "hang_timeout", faults_);
    if (!seconds) return;
    const auto time = std::chrono::duration<double>(*seconds);
    settings_.hang.mode = supervisor::HangMode::kFixed;
    settings_.hang.timeout = std::chrono::ceil<supervisor::Milliseconds>(time);
    if (*seconds == 0) {
      faults_.add(Error(ErrorCode::kInvalidArgument,
                        line_.spelled("hang_timeout") + " is '" + text +
                            "', expected auto, off or a time above 0"));
    }
  }

  const CommandLine& line_;
  const ConfigFile* file_;
  const SlurmView& slurm_;
  const std::function<int()>& ask_num_gpus_;
  std::vector<std::string>& notices_;
  bool is_mpi_ = false;
  int num_slurm_nodes_ = 1;  // --num_machines that SLURM brings together
  std::optional<int> num_gpus_;
  Faults faults_;
  LaunchSettings settings_;
};

}  // namespace

Result<LaunchSettings> merge_settings(const CommandLine& line,
                                      const ConfigFile* file,
                                      const SlurmView& slurm,
                                      const std::function<int()>& num_gpus,
                                      std::vector<std::string>& notices) {
  return Merge(line, file, slurm, num_gpus, notices).run();
}

}  // namespace accel::launcher
