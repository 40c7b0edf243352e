// CgroupFolder: where the files of the cgroups are that a process is in.
//
// Threads:  any; cgroup_folders() reads two files of /proc.
// Source:   cgroups(7), proc(5) "mountinfo".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/system.h"

namespace accel {

// The folder of the hierarchy that a process with these two files is in; empty without one.
// mountinfo, cgroup  contents of /proc/PID/mountinfo and /proc/PID/cgroup.
// controller         of version 1, as "memory"; empty: the hierarchy of version 2.
[[nodiscard]] std::string cgroup_folder(std::string_view mountinfo,
                                        std::string_view cgroup,
                                        std::string_view controller = {});

// Of this process: its own first, then those above it as far as it sees them.
[[nodiscard]] std::vector<std::string> cgroup_folders(System& system, std::string_view controller);

}  // namespace accel
