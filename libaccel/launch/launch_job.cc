#include "libaccel/launch/launch_job.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "runtime/printable.h"
#include "runtime/supervisor/spawn/exit_error.h"
#include "runtime/text/endpoint_text.h"
#include "runtime/text/number_text.h"

namespace accel::launch {
namespace {

using supervisor::JobSpec;

constexpr int kMostWorkers = 4096;  // of a JobSpec
constexpr const char* kUsualPort = "29500";
constexpr const char* kUsualPortOfC10d = "29400";  // where an endpoint has none

Error invalid(std::string what, std::string remedy) {
  return Error(ErrorCode::kInvalidArgument, std::move(what), std::move(remedy));
}

Result<void> check_count(int num_processes) {
  if (num_processes >= 1 && num_processes <= kMostWorkers) return {};
  return invalid("num_processes is " + std::to_string(num_processes) + ", not from 1 to " +
                     std::to_string(kMostWorkers),
                 "give the number of processes to start");
}

// `option`: whose text it is.
Result<std::uint16_t> parse_port(const std::string& option, const std::string& text) {
  if (const auto port = number_of<std::uint16_t>(text)) return *port;
  return invalid(option + " is '" + text + "', not a port number from 0 to 65535",
                 "give a number; \"0\" takes any free port");
}

// What both launchers share; the variables are on top of the program's own.
JobSpec common_job(const LaunchPlace& place, int num_processes, int first_rank, const EnvMap& env) {
  JobSpec spec;
  spec.job_id = place.job_id;
  spec.env = place.environment;
  for (const auto& [name, value] : env) spec.env[name] = value;
  spec.env["FORK_LAUNCHED"] = "1";
  spec.identity.world_size = num_processes;
  spec.identity.local_world_size = num_processes;
  for (int rank = 0; rank < num_processes; ++rank) {
    supervisor::WorkerSpec& worker = spec.workers.emplace_back();
    worker.local_rank = rank;
    worker.global_rank = first_rank + rank;
    worker.argv = {place.program};
  }
  spec.log.error_dir = place.private_folder;
  spec.console.stdin_to_rank0 = false;
  spec.stop.linger = supervisor::Milliseconds(1'000);
  spec.stop.grace = supervisor::Milliseconds(10'000);
  spec.store.port = 0;
  return spec;
}

Result<void> check_nodes(const NotebookLauncherOptions& options) {
  if (options.num_nodes < 1) {
    return invalid("num_nodes is " + std::to_string(options.num_nodes) + ", not at least 1",
                   "give the number of machines");
  }
  if (options.node_rank < 0 || options.node_rank >= options.num_nodes) {
    return invalid("node_rank is " + std::to_string(options.node_rank) + ", not from 0 to " +
                       std::to_string(options.num_nodes - 1),
                   "the node_rank must be less than the number of nodes");
  }
  if (options.num_nodes > 1 && options.max_restarts > 0) {
    return Error(
        ErrorCode::kUnsupported,
        "max_restarts is " + std::to_string(options.max_restarts) + " with num_nodes " +
            std::to_string(options.num_nodes) +
            ": the nodes of a notebook_launcher do not restart together",
        "leave max_restarts 0, or start the program with accel-launch --nnodes, which does");
  }
  return {};
}

Result<void> check_backend(const NotebookLauncherOptions& options) {
  const std::string& backend = options.rdzv_backend;
  if (backend == "static") return {};
  const bool is_known = backend == "c10d" || backend == "etcd" || backend == "etcd-v2";
  if (!is_known) {
    return invalid("rdzv_backend is '" + backend + "'",
                   "choose between static, c10d, etcd and etcd-v2");
  }
  if (options.num_nodes == 1 || backend == "c10d") return {};
  return Error(
      ErrorCode::kUnsupported,
      "rdzv_backend is '" + backend + "' with num_nodes " + std::to_string(options.num_nodes) +
          ": a notebook_launcher does not ask etcd who node 0 is",
      "use \"static\" or \"c10d\" with node_rank and rdzv_endpoint, or start the program with "
      "accel-launch --nnodes --rdzv-backend " +
          backend);
}

// Where node 0 is, as the options say it.
struct MeetingPoint {
  std::string address;
  std::string port;
  std::string option = "use_port";  // that gave the port
};

Result<MeetingPoint> find_meeting(const NotebookLauncherOptions& options) {
  const std::string& endpoint = options.rdzv_endpoint;
  if (endpoint.empty()) return MeetingPoint{options.master_addr, options.use_port};
  const std::size_t colon = endpoint.ends_with(']') ? std::string::npos : endpoint.rfind(':');
  const std::string host =
      without_brackets(std::string_view(endpoint).substr(0, std::min(colon, endpoint.size())));
  const bool has_port = colon != std::string::npos;
  if (!host.empty() && has_port)
    return MeetingPoint{host, endpoint.substr(colon + 1), "the port of rdzv_endpoint"};
  // One node will do with any port.
  const bool is_static = options.rdzv_backend == "static";
  if (!is_static && options.num_nodes == 1)
    return MeetingPoint{options.master_addr, options.use_port};
  if (!is_static && !host.empty()) return MeetingPoint{host, kUsualPortOfC10d};
  return invalid("rdzv_endpoint is '" + endpoint + "', not HOST:PORT",
                 "give the address of node 0 and a port, as in \"10.0.0.1:29500\"");
}

// With c10d the peer numbers the nodes in the order in which they come. Here node 0 is where the endpoint is: two calls that
// both leave node_rank 0 would wait for each other in vain.
Result<void> check_node_0(const LaunchPlace& place,
                          const NotebookLauncherOptions& options,
                          const std::string& host) {
  const bool is_claimed =
      options.rdzv_backend == "c10d" && options.num_nodes > 1 && options.node_rank == 0;
  if (!is_claimed || place.is_own_host(host)) return {};
  return invalid(
      "node_rank is 0, but " + host + ", where the nodes meet, is no address of this machine",
      "give each node a node_rank of its own, and 0 to the one that has the address");
}

Result<void> check_env(const NotebookLauncherOptions& options) {
  constexpr char kNul = '\0';
  for (const auto& [name, value] : options.env) {
    if (name.empty() || name.find('=') != std::string::npos || name.find(kNul) != std::string::npos)
      return invalid("env has '" + printable(name) + "', which cannot be the name of a variable",
                     "give a name without '=' and NUL bytes");
    if (value.find(kNul) != std::string::npos)
      return invalid("env has a value of " + name + " with a NUL byte, where it would end",
                     "give a value without NUL bytes");
  }
  return {};
}

Result<void> check_options(const NotebookLauncherOptions& options) {
  constexpr std::array kPrecisions = {"no", "fp16", "bf16", "fp8"};
  if (!options.num_processes) {
    return invalid("num_processes is not given",
                   "You have to specify the number of devices you would like to use, add "
                   ".num_processes = ... to the options");
  }
  if (auto counted = check_count(*options.num_processes); !counted) return counted;
  if (std::find(kPrecisions.begin(), kPrecisions.end(), options.mixed_precision) ==
      kPrecisions.end()) {
    return invalid("mixed_precision is '" + options.mixed_precision + "'",
                   "choose between no, fp16, bf16 and fp8");
  }
  if (auto checked = check_backend(options); !checked) return checked;
  if (options.max_restarts < 0) {
    return invalid("max_restarts is " + std::to_string(options.max_restarts) + ", below 0",
                   "give 0 or the number of restarts");
  }
  if (options.stop_grace < std::chrono::milliseconds::zero()) {
    return invalid("stop_grace is " + std::to_string(options.stop_grace.count()) + " ms, below 0",
                   "give a time of at least 0");
  }
  if (auto checked = check_env(options); !checked) return checked;
  return check_nodes(options);
}

}  // namespace

Result<JobSpec> plan_debug_job(const LaunchPlace& place,
                               int num_processes,
                               const std::string& meeting_file) {
  if (auto counted = check_count(num_processes); !counted) return std::move(counted).error();
  return common_job(place,
                    num_processes,
                    0,
                    {{"ACCELERATE_MIXED_PRECISION", "no"},
                     {"ACCELERATE_DEBUG_RDV_FILE", meeting_file},
                     {"ACCELERATE_USE_CPU", "yes"},
                     {"GLOO_SOCKET_IFNAME", "lo"}});
}

Result<JobSpec> plan_notebook_job(const LaunchPlace& place,
                                  const NotebookLauncherOptions& options) {
  if (auto checked = check_options(options); !checked) return std::move(checked).error();
  const auto meeting = find_meeting(options);
  if (!meeting) return meeting.error();
  const auto port = parse_port(meeting->option, meeting->port);
  if (!port) return port.error();
  if (auto checked = check_node_0(place, options, meeting->address); !checked)
    return std::move(checked).error();
  const int num_processes = *options.num_processes;
  EnvMap env = variables_of(options);
  env.emplace("NPROC", std::to_string(num_processes));
  env.emplace("NODE_RANK", std::to_string(options.node_rank));
  JobSpec spec = common_job(place, num_processes, options.node_rank * num_processes, env);
  spec.identity.world_size = options.num_nodes * num_processes;
  spec.identity.node_rank = options.node_rank;
  spec.identity.num_nodes = options.num_nodes;
  spec.identity.run_id = options.rdzv_id;
  spec.identity.max_restarts = options.max_restarts;
  spec.restart.max_restarts = options.max_restarts;
  spec.stop.grace = options.stop_grace;
  spec.log.prefix = !options.log_line_prefix_template.empty();
  spec.log.prefix_template = options.log_line_prefix_template;
  if (options.num_nodes == 1) {
    spec.store.port = *port;
    spec.store.exact_port = meeting->port != kUsualPort && *port != 0;
  } else {
    // No shim knows the other nodes: rank 0 hosts the store, as PyTorch does without an agent.
    if (*port == 0) {
      return invalid(
          meeting->option + " is \"0\" with num_nodes " + std::to_string(options.num_nodes),
          "give a port that is free on node 0, the same on all nodes");
    }
    spec.store.enabled = false;
    spec.identity.use_agent_store = false;
    spec.identity.master_addr = meeting->address;
    spec.identity.master_port = *port;
  }
  return spec;
}

EnvMap variables_of(const NotebookLauncherOptions& options) {
  EnvMap env = {{"ACCELERATE_MIXED_PRECISION", options.mixed_precision}};
  for (const auto& [name, value] : options.env) env[name] = value;
  return env;
}

LaunchError launch_error(const supervisor::JobOutcome& outcome, int num_workers) {
  if (!outcome.first_failure) {
    const Error stopped(ErrorCode::kWorkerFailed,
                        "the launch of " + std::to_string(num_workers) +
                            " processes did not finish: " + outcome.reason,
                        "start it again");
    return {stopped, -1, outcome.exit_code, 0, ""};
  }
  const supervisor::WorkerExit& first = *outcome.first_failure;
  const Error cause = supervisor::error_of(first, supervisor::rank_name(first, num_workers));
  const supervisor::OwnWords words = supervisor::read_error_file(first.error_file);
  const std::string said = supervisor::own_reason(first, words);
  std::string message = cause.message();
  const std::string ended = " ended with exit code " + std::to_string(first.exit_code);
  if (!said.empty() && message.ends_with(ended)) {
    message = message.substr(0, message.size() - ended.size()) + " failed: " + said;
  } else if (!said.empty()) {
    message += " (" + said + ")";
  }
  Error error(cause.code(), message, cause.remedy());
  for (const std::string& line : supervisor::last_lines(first.tail, 5))
    error.with_detail("tail", line);
  if (outcome.restarts > 0)
    error.with_detail("restarts", std::to_string(outcome.restarts) + " were used");
  return {error,
          first.global_rank,
          first.exit_code,
          first.signal,
          words.text.empty() ? said : words.text};
}

}  // namespace accel::launch
