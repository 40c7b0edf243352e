#include "launcher/start/mpi/mpi_launch.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

#include "launcher/start/ssh/listed_variables.h"
#include "launcher/system/program_output.h"
#include "launcher/text/faults.h"
#include "runtime/printable.h"
#include "runtime/supervisor/spawn/spawner.h"
#include "runtime/text/joined.h"

namespace accel::launcher {
namespace {

// Open MPI's own way to say `-x NAME` for each: names between semicolons.
constexpr const char* kOpenMpiExports = "OMPI_MCA_mca_base_env_list";

// For the variables of Open MPI, then of the Hydra of MPICH and Intel MPI, then of MVAPICH.
constexpr const char* kRankVariables =
    R"(export RANK="${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$MV2_COMM_WORLD_RANK}}" )"
    R"(LOCAL_RANK="${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-$MV2_COMM_WORLD_LOCAL_RANK}}"; )";

void add(std::vector<std::string>& words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
}

// The shell that becomes `command`; `variables` on top of those of its rank.
std::vector<std::string> words_of_rank(const std::string& program,
                                       const std::string& variables,
                                       const std::vector<std::string>& command) {
  std::vector<std::string> words = {
      "/bin/sh", "-c", kRankVariables + ("export " + variables + "; exec \"$@\""), program};
  add(words, command);
  return words;
}

std::vector<std::string> words_for_same_slots(const MpiSettings& settings,
                                              const MpiProgram& program,
                                              const std::vector<std::string>& command) {
  const std::string each = std::to_string(settings.num_on_machine());
  const std::string all = std::to_string(settings.num_processes.value_or(1));
  const auto& hosts = settings.hosts->hosts;
  std::vector<std::string> words = {program.name};
  if (program.family == MpiFamily::kOpenMpi) {
    const auto with_slots = [&](const HostSlots& host) { return host.name + ":" + each; };
    add(words, {"--host", joined(hosts, ",", with_slots), "-n", all});
    // The ranks of a host share its cores, as under ssh.
    add(words, {"--map-by", "slot", "--bind-to", "none"});
  } else {
    add(words, {"-hosts", joined(hosts, ",", &HostSlots::name), "-ppn", each, "-n", all});
  }
  add(words,
      words_of_rank(program.name, "WORLD_SIZE=" + all + " LOCAL_WORLD_SIZE=" + each, command));
  return words;
}

std::vector<std::string> words_for_hosts(const MpiSettings& settings,
                                         const MpiProgram& program,
                                         const std::vector<std::string>& command) {
  if (settings.hosts->have_same_slots()) return words_for_same_slots(settings, program, command);
  const std::string all = std::to_string(settings.num_processes.value_or(1));
  const bool is_open_mpi = program.family == MpiFamily::kOpenMpi;
  std::vector<std::string> words = {program.name};
  if (is_open_mpi) add(words, {"--map-by", "slot", "--bind-to", "none"});
  bool is_first = true;
  for (const HostSlots& host : settings.hosts->hosts) {
    const std::string here = std::to_string(host.slots.size());
    if (!std::exchange(is_first, false)) words.emplace_back(":");
    add(words, {is_open_mpi ? "--host" : "-host", host.name + (is_open_mpi ? ":" + here : "")});
    add(words, {"-n", here});
    add(words,
        words_of_rank(program.name,
                      "WORLD_SIZE=" + all + " LOCAL_WORLD_SIZE=" + here +
                          " CUDA_VISIBLE_DEVICES=" + slot_list(host.slots),
                      command));
  }
  return words;
}

// What DeepSpeed sets for these, unless the user did.
void add_for_hydra(EnvMap& env) {
  for (const auto& [name, value] : {std::pair("I_MPI_PIN", "0"),
                                    std::pair("MV2_ENABLE_AFFINITY", "0"),
                                    std::pair("MV2_SMP_USE_CMA", "0"),
                                    std::pair("MV2_SUPPORT_DL", "1")}) {
    env.try_emplace(name, value);
  }
}

}  // namespace

bool MpiHosts::have_same_slots() const {
  return std::ranges::all_of(
      hosts, [this](const HostSlots& host) { return host.slots == hosts.front().slots; });
}

int MpiHosts::most_slots() const {
  std::size_t most = 1;
  for (const HostSlots& host : hosts) most = std::max(most, host.slots.size());
  return static_cast<int>(most);
}

Result<MpiSettings> plan_mpi(const MpiRequest& request) {
  MpiSettings settings;
  settings.hostfile = request.hostfile;
  settings.num_machines = request.num_machines;
  settings.num_processes = request.num_processes;
  const bool is_several = request.num_machines > 1;
  if (is_several && (!request.main_address || request.main_address->empty())) {
    return usage_error(
        "When using multiple machines, you need to specify the main process IP.",
        "give --main_process_ip, the address of the first host of " + request.hostfile);
  }
  if (is_several && !request.main_port) {
    return usage_error(
        "When using multiple machines, you need to specify the main process port.",
        "give --main_process_port, one that is free on the first host of " + request.hostfile);
  }
  if (request.main_port == 0) {
    return Error(ErrorCode::kInvalidArgument,
                 "--main_process_port is 0, but ranks of mpirun must know the port beforehand",
                 "give --main_process_port 29500, or another one that is free on the first host");
  }
  settings.main_address = request.main_address.value_or("");
  if (settings.main_address.empty()) settings.main_address = MpiSettings().main_address;
  settings.main_port = request.main_port.value_or(settings.main_port);
  return settings;
}

MpiSettings plan_mpi_hosts(const HostSettings& hosts) {
  MpiSettings settings;
  settings.hosts = MpiHosts{.hosts = hosts.hosts, .launcher = hosts.mpi};
  settings.num_machines = static_cast<int>(hosts.hosts.size());
  settings.num_processes = hosts.num_workers();
  settings.main_address = hosts.main_address;
  settings.main_port = hosts.main_port;
  return settings;
}

MpiFamily mpi_family(std::string_view version) {
  return version.find("Open MPI") != std::string_view::npos ? MpiFamily::kOpenMpi
                                                            : MpiFamily::kHydra;
}

Result<MpiProgram> find_mpi_program(const EnvMap& environment) {
  const auto path = environment.find("PATH");
  for (const char* name : {"mpirun", "mpiexec"}) {
    if (path == environment.end() || !supervisor::find_program(name, path->second)) continue;
    const auto version = run_program({name, "--version"}, environment);
    if (!version) return version.error();
    return MpiProgram{name, mpi_family(version->out)};
  }
  return Error(ErrorCode::kExecFailed,
               "mpirun or mpiexec were not found",
               "install Open MPI (`apt install openmpi-bin`), Intel MPI or MVAPICH, or leave "
               "--mpirun_hostfile and mpirun_config out");
}

Result<void> check_mpi_program(const MpiSettings& settings, const MpiProgram& program) {
  if (!settings.hosts) return {};
  const bool is_open_mpi = program.family == MpiFamily::kOpenMpi;
  const std::string& launcher = settings.hosts->launcher;
  if (is_open_mpi == (launcher == "openmpi")) return {};
  return usage_error("--deepspeed_multinode_launcher is " + launcher + ", but the " + program.name +
                         " on PATH is " + (is_open_mpi ? "Open MPI" : "of the family of MPICH"),
                     std::string("give --deepspeed_multinode_launcher ") +
                         (is_open_mpi ? "openmpi" : "mpich") +
                         ", or put the other one first on PATH");
}

Result<void> check_mpi_hostfile(const std::string& path) {
  struct stat info {};
  const bool is_there = ::access(path.c_str(), R_OK) == 0 && ::stat(path.c_str(), &info) == 0;
  if (is_there && !S_ISDIR(info.st_mode)) return {};
  return Error(ErrorCode::kConfigUnreadable,
               "cannot open the hostfile of mpirun, " + printable(path) + ": " +
                   (is_there ? "it is a folder" : errno_text(errno)),
               "give --mpirun_hostfile, or mpirun_config of the configuration file, the path of a "
               "file that names the hosts");
}

std::vector<std::string> mpirun_words(const MpiSettings& settings,
                                      const MpiProgram& program,
                                      const std::vector<std::string>& command) {
  if (settings.hosts) return words_for_hosts(settings, program, command);
  const bool is_open_mpi = program.family == MpiFamily::kOpenMpi;
  std::vector<std::string> words = {
      program.name, is_open_mpi ? "--hostfile" : "-f", settings.hostfile};
  // Else they fill the slots that the hostfile gives each host.
  if (settings.num_processes.value_or(settings.num_machines) % settings.num_machines == 0)
    add(words, {is_open_mpi ? "--npernode" : "-ppn", std::to_string(settings.num_on_machine())});
  if (settings.num_processes)
    words.insert(words.end(), {"-n", std::to_string(*settings.num_processes)});
  if (is_open_mpi) words.insert(words.end(), {"--bind-to", "socket"});
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

void add_mpi_environment(EnvMap& env,
                         const EnvMap& inherited,
                         const EnvMap& listed,
                         const MpiSettings& settings,
                         const MpiProgram& program) {
  if (settings.num_machines > 1 || settings.num_processes.value_or(1) > 1) {
    env["MASTER_ADDR"] = settings.main_address;
    env["MASTER_PORT"] = std::to_string(settings.main_port);
  }
  if (settings.hosts) {
    for (const auto& [name, value] : listed) env[name] = value;
    if (settings.hosts->have_same_slots())
      env["CUDA_VISIBLE_DEVICES"] = slot_list(settings.hosts->hosts.front().slots);
    if (program.family == MpiFamily::kHydra) add_for_hydra(env);
  }
  if (program.family != MpiFamily::kOpenMpi) return;
  std::string names;
  if (const auto before = env.find(kOpenMpiExports); before != env.end()) names = before->second;
  for (const auto& [name, value] : env) {
    const auto before = inherited.find(name);
    const bool is_inherited = before != inherited.end() && before->second == value;
    const bool is_meant = settings.hosts && (is_exported(name) || listed.contains(name) ||
                                             name == "CUDA_VISIBLE_DEVICES");
    if (is_inherited && !is_meant) continue;
    names += (names.empty() ? "" : ";") + name;
  }
  if (!names.empty()) env[kOpenMpiExports] = names;
}

Result<void> hand_to_mpirun(supervisor::JobSpec& spec,
                            const MpiSettings& settings,
                            const LaunchHost& host) {
  const auto program = host.mpi_program();
  if (!program) return program.error();
  if (auto checked = check_mpi_program(settings, *program); !checked) return checked;
  const auto listed = settings.hosts ? read_listed_variables(host.environment) : Result(EnvMap());
  if (!listed) return listed.error();
  supervisor::WorkerSpec& starter = spec.workers.front();
  starter.is_starter = true;
  starter.cpus.clear();  // mpirun binds its ranks itself
  starter.argv = mpirun_words(settings, *program, starter.argv);
  for (auto& [name, value] : starter.env) spec.env[name] = std::move(value);
  starter.env.clear();
  add_mpi_environment(spec.env, host.environment, *listed, settings, *program);
  // The ranks are mpirun's; of DeepSpeed's plan for one worker here its store and identity go.
  spec.env_mode = EnvMode::kSimple;
  spec.store.enabled = false;
  return {};
}

}  // namespace accel::launcher
