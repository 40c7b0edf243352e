// InterruptEnd: dying of a Ctrl-C, as a shell ends its loop only when what it waits for died of SIGINT.
//
// Threads:  main()'s.
#pragma once

namespace accel::launcher {

// Whether a Ctrl-C at the terminal is for this process, for those who cannot see where a SIGINT came from.
[[nodiscard]] bool is_in_foreground();

// What is buffered is written out before. Comes back only when the signal is ignored.
void end_by_interrupt();

}  // namespace accel::launcher
