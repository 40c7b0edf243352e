// What a /proc/PID/stat says.
//
// Threads:  any.
// Source:   proc(5).
#pragma once

#include <cstdint>
#include <istream>

namespace accel::shm {

// When the process was started, in ticks since boot; 0: there is none, also when it went after the file was opened, and
// the read fails (ESRCH).
[[nodiscard]] std::uint64_t start_time_in(std::istream& stat);

}  // namespace accel::shm
