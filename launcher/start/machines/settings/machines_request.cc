#include "launcher/start/machines/settings/machines_request.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "runtime/printable.h"
#include "runtime/text/endpoint_text.h"

namespace accel::launcher {
namespace {

constexpr std::string_view kEtcdPort = ":2379";

std::nullopt_t choose_one_machine(const MachinesRequest& request,
                                  const CommandLine& line,
                                  std::vector<std::string>& notices,
                                  Faults& faults) {
  if (request.rank.value_or(0) > 0) {
    faults.add(Error(ErrorCode::kInvalidArgument,
                     line.spelled("machine_rank") + " is " + std::to_string(*request.rank) +
                         " with one machine, expected 0",
                     "leave " + line.spelled("machine_rank") + " out"));
  }
  const std::string address = request.address.value_or("");
  if (!address.empty() && !is_loopback_name(address)) {
    notices.push_back(line.spelled("main_process_ip") + " " + address +
                      " has no effect: with one machine the store listens on 127.0.0.1");
  }
  return std::nullopt;
}

// What makes no sense beside a number of machines.
void check_others(const CommandLine& line, Faults& faults) {
  constexpr std::string_view kOfOne[] = {"standalone", "nnodes"};
  constexpr std::string_view kOfAgents[] = {"agent",
                                            "rdzv_endpoint",
                                            "rdzv_token_file",
                                            "rdzv_tls_dir",
                                            "rdzv_insecure",
                                            "rdzv_dir",
                                            "node_id",
                                            "fencing",
                                            "lease"};
  const auto refuse = [&](std::string_view name, std::string remedy) {
    if (!line.has(name)) return;
    faults.add(usage_error(line.spelled(name) + " is not for machines that meet without a daemon",
                           std::move(remedy)));
  };
  for (const auto name : kOfOne) refuse(name, "leave one of them out");
  const std::string otherwise =
      ", or let nodes meet by --nnodes and " + line.spelled("rdzv_endpoint");
  for (const auto name : kOfAgents) {
    refuse(name,
           (name == "rdzv_token_file" ? "set ACCEL_JOB_TOKEN_FILE to it" : "leave it out") +
               otherwise);
  }
}

bool is_by_etcd(const MachinesRequest& request, const CommandLine& line) {
  return line.etcd || request.backend.value_or("").starts_with("etcd");
}

// A file of `accelerate config` always has a machine_rank: with c10d only the flag is meant. With etcd the
// first one there is machine 0.
bool joins_in_order(const MachinesRequest& request, const CommandLine& line) {
  return line.joins_in_order || is_by_etcd(request, line) ||
         (request.backend == "c10d" && !line.has("machine_rank"));
}

// What a flag says is looked at where lines of torchrun are read.
void check_backend(const MachinesRequest& request, const CommandLine& line, Faults& faults) {
  if (line.has("rdzv_backend")) return;
  const std::string backend = request.backend.value_or("static");
  for (const char* known : {"static", "c10d", "etcd", "etcd-v2"}) {
    if (backend == known) return;
  }
  faults.add(Error(ErrorCode::kUnsupported,
                   "rdzv_backend of the configuration file is '" + printable(backend) +
                       "', expected static, c10d, etcd or etcd-v2",
                   "say static or c10d"));
}

// Without an endpoint the address of the main process is that of etcd, as with the peer.
void choose_etcd(const MachinesRequest& request,
                 const CommandLine& line,
                 MachinesSettings& settings,
                 Faults& faults) {
  EtcdAccess etcd = line.etcd.value_or(EtcdAccess{});
  settings.address.clear();
  settings.port = static_cast<std::uint16_t>(request.port.value_or(0));
  if (etcd.endpoint.empty()) {
    etcd.endpoint = host_in_endpoint(request.address.value_or(""));
    if (settings.port != 0) etcd.endpoint += ":" + std::to_string(settings.port);
    settings.port = 0;
  }
  if (etcd.endpoint.empty()) {
    faults.add(usage_error("rdzv_backend etcd needs the address of etcd",
                           "give " + line.spelled("rdzv_endpoint") + " HOST:2379, or it as " +
                               line.spelled("main_process_ip") + " and " +
                               line.spelled("main_process_port")));
  }
  etcd.endpoint = etcd_endpoint(std::move(etcd.endpoint));
  settings.etcd = std::move(etcd);
}

void check_place(const MachinesRequest& request, const CommandLine& line, Faults& faults) {
  if (request.address.value_or("").empty()) {
    faults.add(usage_error("When using multiple machines, you need to specify the main process IP.",
                           "give " + line.spelled("main_process_ip") +
                               ", the address of machine 0, on every machine"));
  }
  if (!request.port && request.is_simple && !line.has("main_process_port")) {
    faults.add(
        usage_error("When using multiple machines, you need to specify the main process port.",
                    "give " + line.spelled("main_process_port") + ", the same on every machine"));
  }
  if (request.port == 0) {
    faults.add(Error(
        ErrorCode::kInvalidArgument,
        line.spelled("main_process_port") + " is 0, but the other machines have to know the port",
        "give " + line.spelled("main_process_port") +
            " from 1 to 65535, the same on every machine"));
  }
  if (!joins_in_order(request, line) && request.rank.value_or(0) >= request.num_machines) {
    faults.add(Error(ErrorCode::kInvalidArgument,
                     line.spelled("machine_rank") + " is " + std::to_string(*request.rank) +
                         ", expected 0 to " + std::to_string(request.num_machines - 1) + " with " +
                         line.spelled("num_machines") + " " + std::to_string(request.num_machines),
                     "give each machine a " + line.spelled("machine_rank") + " of its own"));
  }
}

}  // namespace

std::string etcd_endpoint(std::string text) {
  return split_endpoint(text).port ? std::move(text) : std::move(text).append(kEtcdPort);
}

std::optional<MachinesSettings> choose_machines(const MachinesRequest& request,
                                                const CommandLine& line,
                                                std::vector<std::string>& notices,
                                                Faults& faults) {
  if (request.num_machines == 1) return choose_one_machine(request, line, notices, faults);
  check_others(line, faults);
  check_backend(request, line, faults);
  const bool asks_etcd = is_by_etcd(request, line);
  if (!asks_etcd) check_place(request, line, faults);
  MachinesSettings settings;
  settings.num_machines = request.num_machines;
  if (!joins_in_order(request, line)) settings.machine_rank = request.rank.value_or(0);
  settings.address = request.address.value_or("");
  settings.port = static_cast<std::uint16_t>(request.port.value_or(kDefaultMainPort));
  settings.is_at_endpoint = line.is_at_endpoint;
  settings.run_id = line.text("rdzv_id").value_or(line.run_id);
  if (asks_etcd) choose_etcd(request, line, settings, faults);
  if (const auto limit = seconds_flag(line, "rdzv_join_timeout", faults))
    settings.join_timeout = std::chrono::seconds(std::max(1, static_cast<int>(*limit)));
  return settings;
}

}  // namespace accel::launcher
