// ProgramOutput: what another program says, for commands that ask one (mpirun, aws).
//
// Threads:  any; waits until the program has ended, or its time is over.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <accel/env_contract.h>
#include <accel/result.h>

namespace accel::launcher {

struct ProgramOutput {
  int exit_code = 0;  // 128 + signal
  std::string out;    // its stdout; stderr goes where ours goes
};

// "NAME=VALUE" for each variable.
[[nodiscard]] std::vector<std::string> assignments_of(const EnvMap& environment);

// As execve() and posix_spawn() take them, with a null pointer at the end; they live as long as `words`.
[[nodiscard]] std::vector<char*> pointers_to(std::vector<std::string>& words);

// For a program that only says something about itself or the machine.
inline constexpr std::chrono::seconds kAnswerLimit{20};

// Runs words[0], looked up on PATH, in `environment` with an empty input. One that has not ended after `limit` is killed,
// and not waited for: before a lost GPU nvidia-smi does not even end then.
// Errors  kExecFailed: it cannot be started, or its time was over.
[[nodiscard]] Result<ProgramOutput> run_program(const std::vector<std::string>& words,
                                                const EnvMap& environment,
                                                std::chrono::milliseconds limit = kAnswerLimit);

}  // namespace accel::launcher
