#include "launcher/cluster_entry/agent_commands.h"

namespace accel::launcher {

std::span<const AgentCommand> agent_commands() noexcept {
  static constexpr AgentCommand kCommands[] = {
      {"run",
       "submit a job to the agent of this machine and follow it",
       "--name=,--nnodes=,--num_processes=,--max_restarts=,--stop-grace=,--hang_timeout=,"
       "--log_rotate_bytes=,--log_keep=,--log_overflow=,--log_merge_stderr,--preflight=,"
       "--preflight_seconds=,--cwd=,--env=,--spec=,--detach"},
      {"status", "the jobs of an agent, or one job", ""},
      {"logs", "what the workers of a job wrote", "--follow,--rank="},
      {"stop", "stop a job", "--kill"},
      {"signal", "send a signal to the workers of a job", ""},
      {"scale", "change how many nodes a job has", ""},
      {"diagnose", "where the workers of a job stand", ""},
      {"ledger", "where the time of a job went", ""},
      {"watch", "each change of a job, or of all", ""},
      {"drain", "let the node start no more jobs", "--reason=,--stop"},
      {"undrain", "let it start jobs again", ""},
  };
  return kCommands;
}

}  // namespace accel::launcher
