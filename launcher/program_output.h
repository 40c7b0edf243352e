// ProgramOutput: what another program says, for commands that ask one (mpirun, aws).
//
// Threads:  any; waits until the program has ended.
#pragma once

#include <string>
#include <vector>

#include <accel/env_contract.h>
#include <accel/result.h>

namespace accel::launcher {

struct ProgramOutput {
  int exit_code = 0;  // 128 + signal
  std::string out;    // its stdout; stderr goes where ours goes
};

// Runs words[0], looked up on PATH, in `environment` with an empty input.
// Errors  kExecFailed: it cannot be started.
[[nodiscard]] Result<ProgramOutput> run_program(const std::vector<std::string>& words,
                                                const EnvMap& environment);

}  // namespace accel::launcher
