// Agent: accel-agent's parts, put together and run until a signal ends it.
//
//   starting --sockets listen, READY--> serving --SIGTERM, SIGINT--> draining --no job left--> ended
//                                         |  ^                          '--grace over: SIGKILL--^
//                                         |--SIGHUP: configuration read again
//                                         '--SIGUSR2: ended; jobs go on under their shims, for the next agent
//
// Threads:  run() is the supervisor's thread and owns all state; gRPC's threads only post to it, one thread reads the
//           output of jobs for clients.
// Source:   docs/admin/agent.md.
#pragma once

#include <functional>
#include <string>

#include <accel/result.h>

#include "agent/config/agent_config.h"

namespace accel::agent {

struct AgentOptions {
  std::string config_path;  // empty: none
  // The command line's word, put on top of the file's whenever that is read.
  std::function<Result<AgentConfig>()> load;
  // One line for the log; what stands in it is printable and free of secrets.
  std::function<void(const std::string&)> log;
  std::string version;  // of the build, for metrics
};

// Runs the agent; gives the exit status. Errors  kAgentRunning, kFileIo, kTls, kInvalidArgument: it did not start.
[[nodiscard]] Result<int> run_agent(const AgentOptions& options);

}  // namespace accel::agent
