// The real LaunchHost: this process's environment, this machine's cores and GPUs.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

#include <sys/stat.h>
#include <unistd.h>

#include "launcher/devices/machine_cores.h"
#include "launcher/start/mpi/mpi_launch.h"
#include "launcher/start/sagemaker/training_container.h"
#include "launcher/system/own_environment.h"
#include "launcher/workers/launch_host.h"
#include "runtime/supervisor/store/tcp_listener.h"
#include "runtime/text/number_text.h"
#include "runtime/text/text_file.h"
#include "runtime/user_folders.h"

namespace accel::launcher {
namespace {

// /dev/nvidia0, /dev/nvidia1, ...: there without loading any CUDA library.
int num_installed_gpus() {
  constexpr std::string_view kPrefix = "nvidia";
  int count = 0;
  std::error_code failure;
  for (std::filesystem::directory_iterator entry("/dev", failure), end; !failure && entry != end;
       entry.increment(failure)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with(kPrefix) && is_digits(name.substr(kPrefix.size()))) ++count;
  }
  return count;
}

// CUDA stops at the first entry of CUDA_VISIBLE_DEVICES that names no GPU; -1 is the usual way to
// say none.
int num_visible_gpus(const EnvMap& environment) {
  const int installed = num_installed_gpus();
  const auto visible = environment.find("CUDA_VISIBLE_DEVICES");
  if (visible == environment.end()) return installed;
  const std::string& list = visible->second;
  if (list.empty() || list.starts_with('-')) return 0;
  return std::min<int>(installed, 1 + static_cast<int>(std::count(list.begin(), list.end(), ',')));
}

std::string unique_suffix() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto ticks = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  char text[40];
  std::snprintf(text,
                sizeof text,
                "%d-%08llx",
                getpid(),
                static_cast<unsigned long long>(ticks) & 0xffffffffULL);
  return text;
}

// Looked at before the supervisor listens there: whoever takes it in between is met as any other.
std::optional<Error> port_fault(std::uint16_t port) {
  const auto listener = supervisor::listen_tcp({.port = port, .exact_port = true});
  if (listener || listener.error().code() != ErrorCode::kPortInUse) return std::nullopt;
  return listener.error();
}

// The user's own folder for such things if he has one, else where temporary files go.
std::string private_base(const EnvMap& environment) {
  const auto is_usable = [](const std::string& folder) {
    return folder.starts_with('/') && ::access(folder.c_str(), W_OK | X_OK) == 0;
  };
  struct stat info = {};
  const auto runtime = environment.find("XDG_RUNTIME_DIR");
  if (runtime != environment.end() && is_usable(runtime->second) &&
      ::stat(runtime->second.c_str(), &info) == 0 && info.st_uid == ::geteuid()) {
    return runtime->second;
  }
  const std::string temporary = temporary_folder(environment);
  return is_usable(temporary) ? temporary : "";
}

}  // namespace

LaunchHost real_launch_host() {
  LaunchHost host;
  host.environment = own_environment();
  host.topology = [](Caches caches) { return read_topology(caches); };
  host.cpu_quota = [] { return cpu_quota(real_system()); };
  host.num_machine_cores = [] { return num_machine_cores(); };
  host.num_gpus = [environment = host.environment] { return num_visible_gpus(environment); };
  host.resource_config = [] {
    auto text = read_text_file(kResourceConfigPath, kMostConfigBytes, "the hosts of SageMaker");
    return text ? *std::move(text) : std::string();
  };
  host.mpi_program = [environment = host.environment] { return find_mpi_program(environment); };
  host.port_fault = port_fault;
  host.home = home_folder(host.environment);
  std::error_code failure;
  host.program_folder =
      std::filesystem::read_symlink("/proc/self/exe", failure).parent_path().string();
  host.nvidia = [] { return read_nvidia_machine(); };
  host.job_suffix = unique_suffix();
  host.private_base = private_base(host.environment);
  host.stdin_is_terminal = isatty(STDIN_FILENO) == 1;
  host.stdout_is_terminal = isatty(STDOUT_FILENO) == 1;
  return host;
}

}  // namespace accel::launcher
