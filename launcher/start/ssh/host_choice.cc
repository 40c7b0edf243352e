#include "launcher/start/ssh/host_choice.h"

#include <utility>

#include "runtime/text/text_file.h"

namespace accel::launcher {
namespace {

Error invalid_argument(std::string message, std::string remedy) {
  return Error(ErrorCode::kInvalidArgument, std::move(message), std::move(remedy));
}

bool is_deepspeed(const CommandLine& line, const ConfigFile* file) {
  if (line.is_on("use_deepspeed")) return true;
  if (file == nullptr || file->distributed_type != "DEEPSPEED") return false;
  for (const char* other : {"cpu", "multi_gpu", "use_fsdp", "use_megatron_lm"}) {
    if (line.is_on(other)) return false;
  }
  return true;
}

// What flag, else file, say of an option of DeepSpeed; empty: nothing.
std::string said(const HostRequest& request, const std::string& option) {
  if (const auto text = request.line.text(option)) return *text;
  if (request.file == nullptr) return "";
  const auto found = request.file->options.find(option);
  return found == request.file->options.end() ? "" : found->second;
}

// srun takes the nodes of its allocation, and these cannot be chosen by DeepSpeed's flags.
Result<void> check_slurm(const HostRequest& request) {
  if (!request.is_in_allocation) {
    return Error(ErrorCode::kUnsupported,
                 request.line.spelled("deepspeed_multinode_launcher") +
                     " is slurm, but this is no allocation of SLURM",
                 "run the same line in a script of sbatch, or as `salloc --nodes " +
                     std::to_string(request.num_machines) + " " +
                     std::string(name_of(request.line.program())) + " ...`");
  }
  for (const char* filter : {"deepspeed_inclusion_filter", "deepspeed_exclusion_filter"}) {
    if (said(request, filter).empty()) continue;
    return Error(ErrorCode::kUnsupported,
                 request.line.spelled(filter) + " cannot be used with " +
                     request.line.spelled("deepspeed_multinode_launcher") +
                     " slurm, which takes all nodes of the allocation",
                 "give --nodelist or --exclude to sbatch or salloc");
  }
  return {};
}

bool is_mpi(const std::string& launcher) {
  return launcher == "openmpi" || launcher == "mpich" || launcher == "mvapich";
}

Result<HostSettings> read_hostfile(const HostRequest& request, const std::string& path) {
  constexpr std::uint64_t kMostBytes = 16U << 20;
  const auto text = read_text_file(path, kMostBytes, "the hostfile");
  if (!text) return text.error();
  auto hosts = parse_hostfile(*text, path);
  if (!hosts) return std::move(hosts).error();
  const std::string inclusion = said(request, "deepspeed_inclusion_filter");
  const std::string exclusion = said(request, "deepspeed_exclusion_filter");
  auto taken = filter_hosts(*std::move(hosts), inclusion, exclusion);
  if (!taken) return std::move(taken).error();
  return plan_hosts(*std::move(taken), !inclusion.empty() || !exclusion.empty(), request);
}

// Without a filter all hosts start as many, whatever slots they have beside.
Result<void> divide_processes(HostSettings& settings, const HostRequest& request) {
  const std::optional<int> number = request.num_processes();
  if (!number) return {};
  const int machines = static_cast<int>(settings.hosts.size());
  const std::string processes = std::to_string(*number);
  if (*number % machines != 0) {
    return invalid_argument(request.line.spelled("num_processes") + " is " + processes +
                                ", which does not divide by the " + std::to_string(machines) +
                                " hosts of the hostfile",
                            "give a multiple of " + std::to_string(machines) + " as " +
                                request.line.spelled("num_processes"));
  }
  const auto each = static_cast<std::size_t>(*number / machines);
  for (HostSlots& host : settings.hosts) {
    if (host.slots.size() < each) {
      return invalid_argument("host " + host.name + " has " + std::to_string(host.slots.size()) +
                                  " slots in the hostfile, and " +
                                  request.line.spelled("num_processes") + " " + processes +
                                  " over " + std::to_string(machines) + " hosts are " +
                                  std::to_string(each) + " each",
                              "lower " + request.line.spelled("num_processes") +
                                  ", or raise the slots of " + host.name);
    }
    host.slots.resize(each);
  }
  return {};
}

}  // namespace

Result<HostSettings> plan_hosts(std::vector<HostSlots> hosts,
                                bool is_filtered,
                                const HostRequest& request) {
  HostSettings settings;
  settings.hosts = std::move(hosts);
  const auto number = settings.hosts.size();
  if (number != static_cast<std::size_t>(request.num_machines)) {
    return invalid_argument(
        request.line.spelled("num_machines") + " is " + std::to_string(request.num_machines) +
            ", but " + std::to_string(number) + (number == 1 ? " host is" : " hosts are") +
            " taken from the hostfile",
        "give " + request.line.spelled("num_machines") + " " + std::to_string(number) +
            ", or choose hosts with " + request.line.spelled("deepspeed_inclusion_filter"));
  }
  if (request.main_port == 0) {
    return invalid_argument(request.line.spelled("main_process_port") +
                                " is 0, but all hosts must know the port beforehand",
                            "give " + request.line.spelled("main_process_port") +
                                " 29500, or another one that is free on " +
                                settings.hosts.front().name);
  }
  if (!is_filtered) {
    if (auto divided = divide_processes(settings, request); !divided) return divided.error();
  }
  settings.main_address = request.main_address.value_or("");
  if (settings.main_address.empty()) settings.main_address = settings.hosts.front().name;
  settings.main_port = request.main_port.value_or(settings.main_port);
  return settings;
}

std::optional<HostSettings> choose_hosts(const HostRequest& request,
                                         std::vector<std::string>& notices,
                                         Faults& faults) {
  if (!is_deepspeed(request.line, request.file)) return std::nullopt;
  const std::string path = said(request, "deepspeed_hostfile");
  if (request.num_machines == 1) {
    if (request.line.has("deepspeed_hostfile"))
      notices.push_back(request.line.spelled("deepspeed_hostfile") +
                        " has no effect with one machine (" + request.line.spelled("num_machines") +
                        ")");
    return std::nullopt;
  }
  const std::string launcher = said(request, "deepspeed_multinode_launcher");
  if (launcher == "standard" || launcher == "nossh") return std::nullopt;
  if (launcher == "slurm") {
    if (auto good = check_slurm(request); !good) faults.add(std::move(good).error());
    return std::nullopt;
  }
  if (path.empty() && is_mpi(launcher)) {
    faults.add(Error(
        ErrorCode::kUsage,
        request.line.spelled("deepspeed_multinode_launcher") + " " + launcher + " needs a hostfile",
        "give " + request.line.spelled("deepspeed_hostfile") +
            ", with lines as `worker-1 slots=4`"));
  }
  if (path.empty()) return std::nullopt;
  auto settings = read_hostfile(request, path);
  if (!settings) {
    faults.add(std::move(settings).error());
    return HostSettings();
  }
  if (launcher == "pdsh") settings->transport = HostTransport::kPdsh;
  if (is_mpi(launcher)) {
    settings->transport = HostTransport::kMpirun;
    settings->mpi = launcher;
  }
  return *std::move(settings);
}

}  // namespace accel::launcher
