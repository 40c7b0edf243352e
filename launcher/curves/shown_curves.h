// What a page shows of the files that trackers write: `accel-launch --dashboard`, and `accel plot --json` for an agent's page.
//
// Threads:  any one; reads files.
// Cost:     reads the files anew, within CurveLimits. A number takes 24 bytes of memory, and two in a file at least.
// Source:   docs/guides/dashboard.md.
#pragma once

#include <cstddef>
#include <string>

#include "launcher/curves/run_log.h"
#include "runtime/supervisor/dashboard/dashboard_curves.h"

namespace accel::launcher {

// Of one look; `accel plot` draws more.
struct CurveLimits {
  RunLimits runs;
  std::size_t panels = 200;
  std::size_t points = 400'000;  // of all curves together: some 15 MB of JSON
};

inline constexpr int kShownColumns = 300;  // of a panel, with four points of a curve at most

// What is there now; what is not is said in the notice. `path`: a folder that trackers write into, or a file of theirs.
[[nodiscard]] supervisor::DashboardCurves curves_at(const std::string& path,
                                                    const CurveLimits& limits = {});

}  // namespace accel::launcher
