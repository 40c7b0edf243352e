#include "launcher/plan/node_settings.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <tuple>

#include "launcher/start/machines/settings/machines_request.h"

namespace accel::launcher {
namespace {

using Range = std::pair<int, int>;

// With c10d or etcd it is a line of torchrun, word by word: as there, whoever reaches the port is trusted. Who asks for
// more has it.
bool may_meet_openly(const CommandLine& line) {
  constexpr std::string_view kMore[] = {
      "rdzv_token_file", "rdzv_tls_dir", "rdzv_insecure", "fencing", "lease", "strict"};
  return std::ranges::none_of(kMore, [&](std::string_view flag) { return line.has(flag); });
}

std::string remedy_for_token(const CommandLine& line) {
  std::string remedy =
      "make one with `(umask 077; openssl rand -hex 32 > token)` and copy it to each node";
  if (may_meet_openly(line)) {
    remedy += ", or give " + line.spelled("rdzv_backend") + " c10d, which has no authentication";
  }
  return remedy;
}

// Where the user says how the nodes meet.
std::optional<ElasticSettings> choose_endpoint(const CommandLine& line,
                                               const SlurmView& slurm,
                                               Range range,
                                               Faults& faults) {
  ElasticSettings elastic;
  std::tie(elastic.min_nodes, elastic.max_nodes) = range;
  elastic.endpoint = line.text("rdzv_endpoint").value_or("");
  if (elastic.endpoint.empty()) {
    // As with torchrun, --nnodes 1 alone is a launch on one machine.
    if (elastic.max_nodes > 1) {
      faults.add(usage_error("--nnodes " + line.text("nnodes").value_or("") + " needs " +
                                 line.spelled("rdzv_endpoint"),
                             "give the address of one node, as " + line.spelled("rdzv_endpoint") +
                                 " 10.0.0.7:29400, on each node"));
    }
    return std::nullopt;
  }
  if (line.etcd) {
    elastic.etcd = *line.etcd;
    elastic.etcd.endpoint = etcd_endpoint(elastic.endpoint);
  }
  elastic.token_file = line.text("rdzv_token_file").value_or("");
  elastic.tls_dir = line.text("rdzv_tls_dir").value_or("");
  const bool is_of_torchrun = line.etcd || line.text("rdzv_backend") == "c10d";
  const bool is_open = is_of_torchrun && may_meet_openly(line);
  elastic.insecure = is_open || line.is_on("rdzv_insecure");
  if (elastic.token_file.empty() && !is_open) {
    faults.add(usage_error("a job of several nodes needs " + line.spelled("rdzv_token_file"),
                           remedy_for_token(line)));
  }
  if (elastic.insecure == !elastic.tls_dir.empty()) {
    faults.add(usage_error("a job of several nodes needs either " + line.spelled("rdzv_tls_dir") +
                               " or, on loopback, " + line.spelled("rdzv_insecure"),
                           "make certificates with `accel-agent init-tls`"));
  }
  if (slurm.place && slurm.place->role == SlurmRole::kTask) {
    elastic.node_id = slurm.place->node_name;
    elastic.node_index = slurm.place->node_index;
  }
  return elastic;
}

// Inside SLURM nothing has to be given: address, key and certificates are made for the job.
std::optional<ElasticSettings> choose_slurm_nodes(const CommandLine& line,
                                                  const SlurmView& slurm,
                                                  const std::optional<Range>& range,
                                                  Faults& faults) {
  std::error_code failure;
  const auto base = std::filesystem::absolute(line.text("rdzv_dir").value_or("."), failure);
  std::string folder = base.lexically_normal().string();
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  auto planned = plan_slurm_nodes(*slurm.place,
                                  {.num_nodes = range,
                                   .is_standalone = line.is_on("standalone"),
                                   .starter_folder = slurm.starter_folder,
                                   .base_folder = std::move(folder),
                                   .unique = slurm.unique,
                                   .program = line.program()});
  if (!planned) {
    faults.add(std::move(planned).error());
    return std::nullopt;
  }
  for (const char* name : {"rdzv_token_file", "rdzv_tls_dir", "rdzv_insecure"}) {
    if (*planned && line.has(name)) {
      faults.add(usage_error(line.spelled(name) + " goes with " + line.spelled("rdzv_endpoint") +
                                 ", and inside SLURM none is needed",
                             "leave it out: key and certificates are made for the job"));
    }
  }
  return *std::move(planned);
}

// The agents have their own addresses, certificates, ports and log folders.
std::optional<ElasticSettings> choose_agent(const CommandLine& line,
                                            const std::optional<Range>& range,
                                            Faults& faults) {
  ElasticSettings elastic;
  elastic.meeting = Meeting::kAgent;
  if (range) std::tie(elastic.min_nodes, elastic.max_nodes) = *range;
  elastic.job.clear();  // the job's own id, unless --rdzv_id names it
  for (const char* name : {"rdzv_endpoint",
                           "rdzv_token_file",
                           "rdzv_tls_dir",
                           "rdzv_insecure",
                           "rdzv_dir",
                           "node_id",
                           "main_process_port",
                           "role",
                           "linger",
                           "log_dir",
                           "tee",
                           "redirects",
                           "log_prefix",
                           "progress_line"}) {
    if (line.has(name))
      faults.add(usage_error(
          line.spelled(name) + " cannot be used together with --agent",
          "leave it out: agents have addresses, keys, ports and log folders of their own"));
  }
  for (const char* name : {"rdzv_join_timeout", "rdzv_last_call_timeout", "fencing", "lease"}) {
    if (line.has(name) && elastic.max_nodes == 1)
      faults.add(usage_error(line.spelled(name) + " is for several nodes", "give --nnodes too"));
  }
  return elastic;
}

void choose_fencing(const CommandLine& line, ElasticSettings& elastic, Faults& faults) {
  // A beat a second, and room for one that is lost.
  constexpr double kShortestLease = 2.5;
  constexpr double kLongestLease = 86'400;
  elastic.hard_fencing = line.text("fencing").value_or("soft") == "hard";
  const auto lease = seconds_flag(line, "lease", faults);
  if (!lease) return;
  if (!elastic.hard_fencing)
    faults.add(usage_error("--lease is for hard fencing", "give --fencing hard too"));
  if (*lease < kShortestLease || *lease > kLongestLease) {
    return faults.add(
        usage_error("--lease is " + line.text("lease").value_or("") +
                        ", expected 2.5 s to one day: the coordinator answers once a second",
                    "leave it at 10 s, or make it as long as a break of the network may last"));
  }
  elastic.lease =
      std::chrono::ceil<supervisor::Milliseconds>(std::chrono::duration<double>(*lease));
}

}  // namespace

std::optional<ElasticSettings> choose_nodes(const CommandLine& line,
                                            const SlurmView& slurm,
                                            Faults& faults) {
  std::optional<Range> range;
  if (line.has("nnodes")) {
    auto parsed = parse_num_nodes(line.text("nnodes").value_or(""));
    if (!parsed) {
      faults.add(std::move(parsed).error());
      return std::nullopt;
    }
    range = *parsed;
  }
  std::optional<ElasticSettings> elastic;
  if (line.is_on("agent")) {
    elastic = choose_agent(line, range, faults);
  } else if (slurm.place && !line.has("rdzv_endpoint")) {
    elastic = choose_slurm_nodes(line, slurm, range, faults);
  } else if (range) {
    elastic = choose_endpoint(line, slurm, *range, faults);
  }
  if (!elastic) {
    for (const char* name : kMeetingFlags) {
      if (line.has(name) && line.is_on("standalone")) {
        faults.add(
            usage_error(line.spelled(name) + " is for several nodes, and --standalone for one",
                        "leave one of them out"));
      } else if (line.has(name) && !range) {
        faults.add(usage_error(line.spelled(name) + " is for several nodes", "give --nnodes too"));
      }
    }
    return elastic;
  }
  elastic->job = line.text("rdzv_id").value_or(elastic->job);
  elastic->node_id = line.text("node_id").value_or(elastic->node_id);
  if (const auto limit = seconds_flag(line, "rdzv_join_timeout", faults))
    elastic->join_timeout_seconds = std::max(1, static_cast<int>(*limit));
  if (const auto limit = seconds_flag(line, "rdzv_last_call_timeout", faults))
    elastic->last_call =
        std::chrono::ceil<supervisor::Milliseconds>(std::chrono::duration<double>(*limit));
  choose_fencing(line, *elastic, faults);
  elastic->quiet = line.is_on("quiet");
  return elastic;
}

}  // namespace accel::launcher
