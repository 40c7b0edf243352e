// A write to a rank that has died is an error of that write, not the end of this process.
#pragma once

namespace accel {

// Ignores SIGPIPE for the whole process while its action is the default one; a handler the program has set, or a
// choice to ignore it, stays. Gloo and the server of TCPStore write to their sockets without MSG_NOSIGNAL, on threads
// of their own and of the caller. Python does the same at its start, so ranks in PyTorch never saw this signal.
// Threads: any. Cost: two system calls.
void ignore_sigpipe_unless_handled() noexcept;

}  // namespace accel
