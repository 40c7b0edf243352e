// TrackerRegistry: which trackers there are by name, and how one is made.
//
// Threads:  any.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include <accel/tracking.h>

namespace accel::tracking {

// Throws kInvalidArgument for an unknown name, and for a tracker that wants a logging directory without one.
void check_choices(const LogWith& log_with, const std::string& logging_dir);

// Requires: the name was checked.
[[nodiscard]] std::shared_ptr<GeneralTracker> make_tracker(const std::string& name,
                                                           const std::string& run_name,
                                                           const std::filesystem::path& logging_dir,
                                                           const TrackerDict& kwargs);

}  // namespace accel::tracking
