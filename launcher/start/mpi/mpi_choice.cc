#include "launcher/start/mpi/mpi_choice.h"

#include "launcher/flags/exclusive_flags.h"

namespace accel::launcher {
namespace {

// What starts workers in another way; empty when nothing does.
std::string other_way(const CommandLine& line, const ConfigFile* file) {
  if (std::string flag = first_exclusive_flag(line, "mpirun_hostfile"); !flag.empty()) return flag;
  const bool is_on_cpu =
      line.is_on("cpu") || (file != nullptr && file->use_cpu.value_or(false) && !line.has("cpu"));
  if (file == nullptr || is_on_cpu) return "";
  const std::string& type = file->distributed_type;
  return type == "NO" || type == "MULTI_CPU" ? "" : "distributed_type " + type;
}

}  // namespace

std::optional<std::string> mpi_hostfile(const CommandLine& line,
                                        const ConfigFile* file,
                                        std::vector<std::string>& notices,
                                        Faults& faults) {
  const bool is_flag = line.has("mpirun_hostfile");
  if (!is_flag && (file == nullptr || !file->mpirun_hostfile)) return std::nullopt;
  const std::string path =
      is_flag ? line.text("mpirun_hostfile").value_or("") : *file->mpirun_hostfile;
  const std::string other = other_way(line, file);
  if (!other.empty() && !is_flag) {
    notices.push_back(file->path + ": mpirun_config has no effect with " + other);
    return std::nullopt;
  }
  if (!other.empty()) {
    faults.add(Error(ErrorCode::kUsage,
                     "--mpirun_hostfile cannot be used with " + other +
                         ": mpirun starts workers that compute on the CPU",
                     "leave one of them out"));
    return std::nullopt;
  }
  if (path.empty()) {
    faults.add(Error(ErrorCode::kInvalidArgument,
                     is_flag ? "--mpirun_hostfile is empty"
                             : file->path + ": mpirun_config.mpirun_hostfile is empty",
                     "give the path of a file that names the hosts"));
    return std::nullopt;
  }
  return path;
}

}  // namespace accel::launcher
