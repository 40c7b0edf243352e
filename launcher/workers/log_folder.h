// LogFolder: where log files go when --log_dir names no place.
//
// Temporary folders belong to everybody, so each launch has a folder of its own there: another user's cannot be
// written, and what workers say is nobody else's business.
//
// Threads:  free of state.
#pragma once

#include <string>

#include <accel/env_contract.h>
#include <accel/result.h>

#include "launcher/text/program.h"

namespace accel::launcher {

// "/tmp/accel_logs-4242-1f2e3d4c"; in TMPDIR of `environment`. `job_suffix` makes it unique.
[[nodiscard]] std::string private_log_folder(const EnvMap& environment,
                                             const std::string& job_suffix);

// Makes it, of mode 0700. Errors  kLogUnwritable: it exists, or its parent cannot be written;
// the remedy speaks as `program` does.
[[nodiscard]] Result<void> make_private_log_folder(const std::string& folder, Program program);

}  // namespace accel::launcher
