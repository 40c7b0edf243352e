#include "launcher/mpi/mpi_launch.h"

#include <utility>

#include "launcher/program_output.h"
#include "runtime/supervisor/spawner.h"

namespace accel::launcher {
namespace {

// Open MPI's own way to say `-x NAME` for each: names between semicolons.
constexpr const char* kOpenMpiExports = "OMPI_MCA_mca_base_env_list";

Error usage(std::string message, std::string remedy) {
  return Error(ErrorCode::kUsage, std::move(message), std::move(remedy));
}

}  // namespace

Result<MpiSettings> plan_mpi(const MpiWish& wish) {
  MpiSettings settings;
  settings.hostfile = wish.hostfile;
  settings.num_machines = wish.num_machines;
  settings.num_processes = wish.num_processes;
  const bool is_several = wish.num_machines > 1;
  const std::string machines = std::to_string(wish.num_machines);
  if (wish.num_processes && *wish.num_processes % wish.num_machines != 0) {
    return Error(ErrorCode::kInvalidArgument,
                 "--num_processes is " + std::to_string(*wish.num_processes) +
                     ", which does not divide by the " + machines +
                     " machines of --num_machines: mpirun starts as many on each",
                 "give a multiple of " + machines + " as --num_processes");
  }
  if (is_several && (!wish.main_address || wish.main_address->empty())) {
    return usage("When using multiple machines, you need to specify the main process IP.",
                 "give --main_process_ip, the address of the first host of " + wish.hostfile);
  }
  if (is_several && !wish.main_port) {
    return usage(
        "When using multiple machines, you need to specify the main process port.",
        "give --main_process_port, one that is free on the first host of " + wish.hostfile);
  }
  if (wish.main_port == 0) {
    return Error(ErrorCode::kInvalidArgument,
                 "--main_process_port is 0, but ranks of mpirun must know the port beforehand",
                 "give --main_process_port 29500, or another one that is free on the first host");
  }
  settings.main_address = wish.main_address.value_or("");
  if (settings.main_address.empty()) settings.main_address = MpiSettings().main_address;
  settings.main_port = wish.main_port.value_or(settings.main_port);
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

std::vector<std::string> mpirun_words(const MpiSettings& settings,
                                      const MpiProgram& program,
                                      const std::vector<std::string>& command) {
  const bool is_open_mpi = program.family == MpiFamily::kOpenMpi;
  std::vector<std::string> words = {program.name,
                                    is_open_mpi ? "--hostfile" : "-f",
                                    settings.hostfile,
                                    is_open_mpi ? "--npernode" : "-ppn",
                                    std::to_string(settings.num_on_machine())};
  if (settings.num_processes)
    words.insert(words.end(), {"-n", std::to_string(*settings.num_processes)});
  if (is_open_mpi) words.insert(words.end(), {"--bind-to", "socket"});
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

void add_mpi_environment(EnvMap& env,
                         const EnvMap& inherited,
                         const MpiSettings& settings,
                         const MpiProgram& program) {
  if (settings.num_machines > 1 || settings.num_processes.value_or(1) > 1) {
    env["MASTER_ADDR"] = settings.main_address;
    env["MASTER_PORT"] = std::to_string(settings.main_port);
  }
  if (program.family != MpiFamily::kOpenMpi) return;
  std::string names;
  if (const auto before = env.find(kOpenMpiExports); before != env.end()) names = before->second;
  for (const auto& [name, value] : env) {
    const auto before = inherited.find(name);
    if (before != inherited.end() && before->second == value) continue;
    names += (names.empty() ? "" : ";") + name;
  }
  if (!names.empty()) env[kOpenMpiExports] = names;
}

}  // namespace accel::launcher
