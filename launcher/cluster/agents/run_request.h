// RunRequest: the job that `accel run` asks for, from its flags and the file of --spec.
//
// What a flag names beats the file; what neither names is left to the agent.
//
// Threads:  pure functions, but for requested_job().
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <accel/result.h>

#include "accel/v1/job.pb.h"
#include "launcher/workers/node_range.h"

namespace accel::cluster {

// As they were given; empty or std::nullopt: not.
struct RunFlags {
  std::vector<std::string> command;
  std::string name;
  std::string nodes;                       // "MIN[:MAX]"
  std::string spec;                        // path of a file
  std::optional<unsigned> num_processes;   // on all nodes together
  std::optional<unsigned> nproc_per_node;  // or: on each
  std::optional<unsigned> max_restarts;
  std::optional<double> stop_grace;  // seconds
  std::string hang_timeout;
  std::string log_rotate_bytes;
  std::optional<unsigned> log_keep;
  std::string log_overflow;
  bool log_merge_stderr = false;
  std::vector<std::string> preflight;  // "NAME=COMMAND"
  double preflight_seconds = 30;
  std::string cwd;
  std::vector<std::string> env;  // "NAME=VALUE"
};

// "2" or "2:4". Errors  kUsage, which begins with `what`.
[[nodiscard]] Result<launcher::NodeRange> parse_nodes(const std::string& text, const char* what);

// Why --hang_timeout cannot be this; empty: it can.
[[nodiscard]] std::string objection_to_hang_timeout(const std::string& text);

// Why a flag cannot be so many seconds: fewer than `least`, more than a day, or no number; empty: it can.
[[nodiscard]] std::string objection_to_seconds(const std::string& text, double least);

// With the environment of this process, less ACCEL_JOB_TOKEN, and its working folder. Requires: no objection to the flags.
// Errors  kUsage, kInvalidArgument, and those of read_spec_file() and parse_preflight().
[[nodiscard]] Result<v1::JobSpec> requested_job(const RunFlags& flags);

}  // namespace accel::cluster
