// PreflightFlag: "NAME=COMMAND" of --preflight, for accel-launch and accel run.
#pragma once

#include <string>

#include <accel/result.h>

#include "runtime/supervisor/protocol/job_spec.h"

namespace accel::launcher {

// A check that runs COMMAND in /bin/sh. Errors  kInvalidArgument.
[[nodiscard]] Result<supervisor::PreflightCheck> parse_preflight(const std::string& text,
                                                                 supervisor::Milliseconds limit);

}  // namespace accel::launcher
