// How near this process is to its limit of open files.
//
// Threads:  plain functions.
// Cost:     one look at each open file; for moments like the start of a job.
#pragma once

namespace accel::agent {

[[nodiscard]] int count_open_files();

// How many more may be opened; a large number where there is no limit.
[[nodiscard]] int open_files_left();

}  // namespace accel::agent
