#include "launcher/start/slurm/slurm_environment.h"

#include "runtime/hostlist.h"
#include "runtime/text/number_text.h"

namespace accel::launcher {
namespace {

// Steps above are SLURM's own (batch script, interactive shell, extern): no task of srun.
constexpr std::int64_t kFirstOwnStep = 0xfffffff0;
constexpr int kMostNodes = 1 << 20;
constexpr std::int64_t kLastSecond = 253'402'300'799;  // of the year 9999
constexpr std::int64_t kLongestKillWait = 65'533;      // slurm.conf takes no more
constexpr int kMostTasks = 1 << 20;                    // on one node

Error invalid_slurm_variable(std::string_view name,
                             std::string_view value,
                             const std::string& expected) {
  return Error(ErrorCode::kEnvInvalid,
               std::string(name) + " is '" + std::string(value) + "', expected " + expected,
               "unset " + std::string(name) +
                   " when it was set by hand; inside SLURM, let SLURM alone set it");
}

std::optional<std::int64_t> number_between(std::string_view text,
                                           std::int64_t least,
                                           std::int64_t most) {
  const auto number = number_of<std::int64_t>(text);
  return number && *number >= least && *number <= most ? number : std::nullopt;
}

// Reads variable after variable; the first fault is kept.
class VariableReader {
 public:
  explicit VariableReader(const EnvMap& environment) : environment_(environment) {}

  [[nodiscard]] std::string_view text(const char* name) const {
    const auto found = environment_.find(name);
    return found == environment_.end() ? std::string_view() : std::string_view(found->second);
  }

  // `otherwise` when it is not set.
  std::int64_t number(const char* name, std::int64_t most, std::int64_t otherwise) {
    const std::string_view value = name == nullptr ? std::string_view() : text(name);
    if (value.empty()) return otherwise;
    if (const auto number = number_between(value, 0, most)) return *number;
    fail(invalid_slurm_variable(name, value, "a whole number from 0 to " + std::to_string(most)));
    return otherwise;
  }

  // The first of the names that is set.
  const char* first_of(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      if (!text(name).empty()) return name;
    }
    return nullptr;
  }

  void fail(Error error) {
    if (!fault_) fault_ = std::move(error);
  }
  [[nodiscard]] const std::optional<Error>& fault() const { return fault_; }

 private:
  const EnvMap& environment_;
  std::optional<Error> fault_;
};

std::vector<std::string> read_node_list(VariableReader& reader, SlurmRole role) {
  const bool is_task = role == SlurmRole::kTask;
  const char* list =
      is_task ? reader.first_of({"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"})
              : reader.first_of({"SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  const char* count =
      is_task ? reader.first_of({"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"})
              : reader.first_of({"SLURM_JOB_NUM_NODES", "SLURM_NNODES"});
  const std::int64_t expected = reader.number(count, kMostNodes, -1);
  if (list == nullptr) {
    // Without names no other node can be found: several of them must not become one.
    if (expected > 1) {
      reader.fail(invalid_slurm_variable(
          "SLURM_JOB_NODELIST", "", "the names of " + std::to_string(expected) + " nodes"));
    }
    return {std::string(reader.text("SLURMD_NODENAME"))};
  }
  auto hosts = expand_hostlist(reader.text(list), kMostNodes);
  if (!hosts) {
    reader.fail(invalid_slurm_variable(
        list, reader.text(list), "a list of hosts: " + hosts.error().message()));
    return {};
  }
  if (expected >= 0 && expected != static_cast<std::int64_t>(hosts->size())) {
    reader.fail(invalid_slurm_variable(
        list,
        reader.text(list),
        "as many hosts as " + std::string(count) + " says, " + std::to_string(expected)));
  }
  return *std::move(hosts);
}

void read_task(VariableReader& reader, SlurmPlace& place) {
  place.step_id = reader.text(reader.first_of({"SLURM_STEP_ID", "SLURM_STEPID"}));
  const int num_nodes = std::max(1, place.num_nodes());
  place.node_index = static_cast<int>(reader.number("SLURM_NODEID", num_nodes - 1, 0));
  place.local_id = static_cast<int>(reader.number("SLURM_LOCALID", kMostTasks, 0));
  place.launch_address = reader.text("SLURM_LAUNCH_NODE_IPADDR");
  const char* name = reader.first_of({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  if (name == nullptr) {
    place.tasks_on_node = place.local_id + 1;
    return;
  }
  const auto counts = expand_task_counts(name, reader.text(name));
  if (!counts) return reader.fail(counts.error());
  if (counts->size() != static_cast<std::size_t>(num_nodes)) {
    return reader.fail(invalid_slurm_variable(
        name, reader.text(name), std::to_string(num_nodes) + " nodes' counts of tasks"));
  }
  place.tasks_on_node = (*counts)[static_cast<std::size_t>(place.node_index)];
}

}  // namespace

Result<std::vector<int>> expand_task_counts(std::string_view name, std::string_view text) {
  const auto bad = [&] {
    return invalid_slurm_variable(
        name, text, "counts of tasks as SLURM writes them, for example 2(x3),1");
  };
  std::vector<int> counts;
  for (std::string_view rest = text;;) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    std::string_view part = rest.substr(0, comma);
    std::optional<std::int64_t> times = 1;
    if (const std::size_t bracket = part.find("(x"); bracket != std::string_view::npos) {
      const std::string_view repeat = part.substr(bracket + 2);
      if (!repeat.ends_with(')')) return bad();
      times = number_between(repeat.substr(0, repeat.size() - 1), 1, kMostNodes);
      part = part.substr(0, bracket);
    }
    const auto count = number_between(part, 1, kMostTasks);
    if (!times || !count) return bad();
    if (counts.size() + static_cast<std::size_t>(*times) > static_cast<std::size_t>(kMostNodes))
      return bad();
    counts.insert(counts.end(), static_cast<std::size_t>(*times), static_cast<int>(*count));
    if (comma == rest.size()) return counts;
    rest.remove_prefix(comma + 1);
  }
}

Result<std::optional<SlurmPlace>> read_slurm(const EnvMap& environment) {
  VariableReader reader(environment);
  const char* job = reader.first_of({"SLURM_JOB_ID", "SLURM_JOBID"});
  if (job == nullptr) return std::optional<SlurmPlace>();
  SlurmPlace place;
  place.job_id = reader.text(job);
  const char* step_name = reader.first_of({"SLURM_STEP_ID", "SLURM_STEPID"});
  const std::int64_t step = reader.number(step_name, 0xffffffffLL, kFirstOwnStep);
  const bool is_task = step < kFirstOwnStep && !reader.text("SLURM_PROCID").empty();
  place.role = is_task ? SlurmRole::kTask : SlurmRole::kBatch;
  place.cluster = reader.text("SLURM_CLUSTER_NAME");
  place.restart_count = static_cast<int>(reader.number("SLURM_RESTART_COUNT", kMostTasks, 0));
  place.end.is_there = true;
  place.end.end_seconds = reader.number("SLURM_JOB_END_TIME", kLastSecond, 0);
  place.end.kill_wait_seconds =
      reader.number("ACCEL_SLURM_KILL_WAIT", kLongestKillWait, place.end.kill_wait_seconds);
  const char* components = reader.first_of({"SLURM_HET_SIZE", "SLURM_PACK_SIZE"});
  place.num_components = static_cast<int>(reader.number(components, kMostNodes, 1));
  place.node_name = reader.text("SLURMD_NODENAME");
  place.hosts = read_node_list(reader, place.role);
  if (const auto all = expand_hostlist(reader.text("SLURM_JOB_NODELIST"), kMostNodes))
    place.job_hosts = *all;
  if (is_task && !reader.fault()) read_task(reader, place);
  if (reader.fault()) return *reader.fault();
  return std::optional(std::move(place));
}

}  // namespace accel::launcher
