// OpenFiles: how near this process is to its limit of open files, and the one file that all jobs share.
//
// Threads:  plain functions.
// Cost:     one look at each open file; for moments like the start of a job.
#pragma once

namespace accel::agent {

// How many more may be opened; a large number where there is no limit.
[[nodiscard]] int open_files_left();

// /dev/null, opened once and never closed: what a shim gets for its standard streams. -1 when it could not be opened.
[[nodiscard]] int null_device();

}  // namespace accel::agent
