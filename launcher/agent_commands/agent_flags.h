// AgentFlags: what was given to a command that speaks to an agent.
#pragma once

#include <chrono>
#include <csignal>
#include <optional>
#include <string>
#include <vector>

namespace accel::launcher {

// How long commands wait for a coordinator when nothing else is said (--wait): a leader's crash costs some 8 s.
inline constexpr std::chrono::seconds kCoordinatorWait{30};

// Of `accel run`, as they were given; empty or std::nullopt: not.
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
  std::string tracking_dir;            // below cwd, if it is no absolute path
  double preflight_seconds = 30;
  std::string cwd;
  std::vector<std::string> env;  // "NAME=VALUE"
};

struct AgentFlags {
  std::string agent;
  std::string tls_dir;
  bool insecure = false;
  bool json = false;
  std::string job;
  double wait = static_cast<double>(kCoordinatorWait.count());  // seconds

  RunFlags run;
  bool detach = false;

  // logs, stop, signal, scale, drain
  std::vector<unsigned> ranks;
  bool follow = false;
  bool kill = false;
  std::optional<double> grace;  // seconds
  int signal = SIGTERM;
  std::string nodes;  // "MIN[:MAX]"
  std::string reason;
  bool stop_jobs = false;

  // top
  double interval = 1;  // seconds
  bool once = false;
};

}  // namespace accel::launcher
