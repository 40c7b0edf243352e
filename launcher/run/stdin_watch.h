// StdinWatch: ends this process when its standard input does, with SIGTERM to itself.
//
// A launcher behind ssh gets no signal when the ssh that started it is killed or told to stop; the end
// of its input is all it sees. What comes before the end is dropped.
//
// Threads:  one of its own, which takes no signals and lives as long as the process.
#pragma once

#include <accel/result.h>

namespace accel::launcher {

// Call it once. Errors  kInternal: no thread can be had.
[[nodiscard]] Result<void> watch_stdin();

}  // namespace accel::launcher
