// DryRun: a LaunchPlan in readable form, for `accel-launch --dry-run`.
#pragma once

#include <string>

#include "launcher/plan/launch_plan.h"

namespace accel::launcher {

// Ranks with their cores and command, the variables that differ from the caller's environment, log
// files and the port. Ends with a newline.
[[nodiscard]] std::string render_dry_run(const LaunchPlan& plan);

}  // namespace accel::launcher
