#include "launcher/cluster/agents/run_request.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <string_view>
#include <utility>

#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/time_util.h>
#include <unistd.h>

#include "launcher/agent_commands/agent_commands.h"
#include "launcher/cluster/meeting/launch_description.h"
#include "launcher/flags/preflight_flag.h"
#include "launcher/text/faults.h"
#include "launcher/workers/launcher_variables.h"
#include "launcher/workers/node_range.h"
#include "runtime/byte_size.h"
#include "runtime/text/text_file.h"

namespace accel::cluster {
namespace {

Result<v1::JobSpec> read_spec_file(const std::string& path) {
  const auto text = read_text_file(path, kMostConfigBytes, "the file");
  if (!text) {
    return Error(text.error().code(),
                 text.error().message(),
                 "check the path given with --spec and its permissions");
  }
  v1::JobSpec spec;
  const auto parsed = google::protobuf::util::JsonStringToMessage(*text, &spec);
  if (parsed.ok()) return spec;
  return Error(ErrorCode::kConfigInvalidValue,
               "'" + path + "' is not a job in JSON: " + std::string(parsed.message()),
               "the names and values are those of JobSpec in proto/accel/v1/job.proto");
}

void set_hang(v1::HangPolicy& hang, const std::string& text) {
  hang.Clear();
  if (text == "off") return;
  hang.set_enabled(true);
  hang.set_auto_(text == "auto");
  if (text == "auto") return;
  const auto ms = static_cast<std::int64_t>(*launcher::hang_seconds(text) * 1000);
  *hang.mutable_beat() = google::protobuf::util::TimeUtil::MillisecondsToDuration(ms);
}

// This environment, then the file's, then what the flags name. Launchers alone know the job's token: the
// agent would keep it with the job, and hand it to the workers.
void set_environment(v1::JobSpec& spec, const launcher::RunFlags& flags) {
  auto& env = *spec.mutable_env();
  for (char** variable = ::environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos || equals == 0) continue;
    const std::string_view name = text.substr(0, equals);
    if (name == launcher::kJobTokenVariable) continue;
    env.insert({std::string(name), std::string(text.substr(equals + 1))});
  }
  for (const std::string& text : flags.env) {
    const std::size_t equals = text.find('=');
    env[text.substr(0, equals)] = equals == std::string::npos ? "" : text.substr(equals + 1);
  }
}

std::string current_folder() {
  char* here = ::get_current_dir_name();
  if (here == nullptr) return "";
  const std::string folder = here;
  std::free(here);
  return folder;
}

// What no flag names stays as it is.
void set_log(v1::LogPolicy& log, const launcher::RunFlags& flags) {
  if (const auto bytes = parse_byte_size(flags.log_rotate_bytes)) log.set_rotate_bytes(*bytes);
  if (flags.log_keep) log.set_keep(*flags.log_keep);
  if (flags.log_overflow == "block") log.set_overflow(v1::LogPolicy::OVERFLOW_BLOCK);
  if (flags.log_overflow == "drop") log.set_overflow(v1::LogPolicy::OVERFLOW_DROP);
  if (flags.log_overflow == "sample") log.set_overflow(v1::LogPolicy::OVERFLOW_SAMPLE);
  if (flags.log_merge_stderr) log.set_merge_stderr(true);
}

// Requires: the spec has its numbers of nodes.
Result<void> set_num_processes(v1::JobSpec& spec, const launcher::RunFlags& flags) {
  if (flags.nproc_per_node) spec.set_procs_per_node(*flags.nproc_per_node);
  if (!flags.num_processes) return {};
  if (flags.nproc_per_node)
    return launcher::usage_error(
        "--num_processes counts the processes of all nodes, --nproc_per_node those of each",
        "give one of them");
  constexpr unsigned kMost = std::numeric_limits<int>::max();  // too many are the agent's to refuse
  const auto least = static_cast<int>(std::clamp(spec.min_nodes(), 1U, kMost));
  const auto most = static_cast<int>(std::min(spec.max_nodes(), kMost));
  const auto share = launcher::share_of_each_node(
      static_cast<int>(*flags.num_processes),
      {least, std::max(least, most)},
      {.nodes = flags.nodes.empty() ? flags.spec : "--nnodes " + flags.nodes});
  if (!share) return share.error();
  spec.set_procs_per_node(static_cast<unsigned>(*share));
  return {};
}

}  // namespace

Result<launcher::NodeRange> parse_nodes(const std::string& text, const char* what) {
  if (const auto range = launcher::parse_node_range(text)) return *range;
  return Error(ErrorCode::kUsage,
               std::string(what) + " must be MIN or MIN:MAX with 1 <= MIN <= MAX <= 100000, not '" +
                   text.substr(0, 64) + "'",
               std::string("give the numbers of nodes, as ") + what + " 2:4");
}

Result<v1::JobSpec> requested_job(const launcher::RunFlags& flags) {
  v1::JobSpec spec;
  if (!flags.spec.empty()) {
    auto read = read_spec_file(flags.spec);
    if (!read) return read;
    spec = *std::move(read);
  }
  if (!flags.nodes.empty() || flags.spec.empty()) {
    const auto nodes = parse_nodes(flags.nodes.empty() ? "1" : flags.nodes, "--nnodes");
    if (!nodes) return nodes.error();
    spec.set_min_nodes(static_cast<std::uint32_t>(nodes->least));
    spec.set_max_nodes(static_cast<std::uint32_t>(nodes->most));
  }
  if (!flags.name.empty()) spec.set_job_id(flags.name);
  if (auto counted = set_num_processes(spec, flags); !counted) return std::move(counted).error();
  if (!flags.command.empty())
    spec.mutable_argv()->Assign(flags.command.begin(), flags.command.end());
  set_environment(spec, flags);
  if (!flags.cwd.empty()) spec.set_cwd(flags.cwd);
  if (spec.cwd().empty()) spec.set_cwd(current_folder());
  if (!flags.tracking_dir.empty())
    spec.set_tracking_dir(std::filesystem::path(spec.cwd()) / flags.tracking_dir);
  if (flags.max_restarts) spec.mutable_restart()->set_max_restarts(*flags.max_restarts);
  if (!flags.hang_timeout.empty()) set_hang(*spec.mutable_hang(), flags.hang_timeout);
  set_log(*spec.mutable_log(), flags);
  for (const std::string& text : flags.preflight) {
    const auto check = launcher::parse_preflight(
        text, supervisor::Milliseconds(static_cast<std::int64_t>(flags.preflight_seconds * 1000)));
    if (!check) return check.error();
    describe_check(*check, *spec.add_preflight());
  }
  if (flags.stop_grace) {
    const auto ms = static_cast<std::int64_t>(*flags.stop_grace * 1000);
    *spec.mutable_stop()->mutable_grace() =
        google::protobuf::util::TimeUtil::MillisecondsToDuration(ms);
  }
  return spec;
}

}  // namespace accel::cluster
