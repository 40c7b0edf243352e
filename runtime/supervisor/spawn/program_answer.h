// ProgramAnswer: what a program writes to its stdout, for whoever waits until it has ended.
//
// Threads:  any; blocks until the program has ended, or a limit is reached.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

#include "runtime/supervisor/spawn/spawner.h"

namespace accel::supervisor {

struct AnswerLimits {
  std::chrono::milliseconds time{20'000};
  std::size_t bytes = std::size_t{1} << 30;
};

struct ProgramAnswer {
  enum class End { kEnded, kNotStarted, kOutOfTime, kTooLong };
  End end = End::kEnded;
  int exit_code = 0;                   // of kEnded; 128 + signal
  std::string out;                     // its stdout
  std::optional<ExecFailure> failure;  // of kNotStarted
};

// Runs the program with an empty input; stdio[2] of the request is its stderr. One that reaches a limit is killed, with its process
// group where it has one of its own, and waited for no longer than a second: before a lost GPU nvidia-smi does not even end then.
[[nodiscard]] ProgramAnswer answer_of(SpawnRequest request, const AnswerLimits& limits = {});

// Of an end as waitpid() tells it: the exit code, or 128 + signal.
[[nodiscard]] int exit_code_of(int wait_status);

}  // namespace accel::supervisor
