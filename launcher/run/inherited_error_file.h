// InheritedErrorFile: TORCHELASTIC_ERROR_FILE as a launcher was started with it.
//
// Who starts a launcher reads there why it failed, as torchrun's own main function tells it: what the rank that failed
// first said in its file, or, of a rank that said nothing (torchrun leaves no file then), how it ended.
//
// Threads:  one.
#pragma once

#include <cstdint>
#include <string>

#include <accel/env_contract.h>
#include <accel/result.h>

#include "runtime/supervisor/protocol/job_outcome.h"

namespace accel::launcher {

// What belongs into the file, at `seconds` since 1970; empty when no rank failed.
[[nodiscard]] std::string error_file_of(const supervisor::JobOutcome& outcome,
                                        int num_workers,
                                        std::int64_t seconds);

// Writes it where `environment` says, if it says so. Errors  kFileIo.
[[nodiscard]] Result<void> keep_error_file(const supervisor::JobOutcome& outcome,
                                           int num_workers,
                                           const EnvMap& environment);

}  // namespace accel::launcher
