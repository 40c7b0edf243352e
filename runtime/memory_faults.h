// MemoryFaults: who is asked when the process touches memory that it may not touch (SIGSEGV) or that is not there (SIGBUS).
//
// One handler of each signal for the process, from the first add_fault_handler() on and for good. It asks those who may mend the
// access, then those who only tell of it, each from the last added to the first. When nobody has mended it the signal goes on to
// the action of before: a debugger, a sanitizer or the kernel's core dump sees the fault as if nothing had been between. A handler
// that the program sets later and that does not call ours hides all this.
//
// Threads:  add_fault_handler() any. Handlers run on the thread that faulted, in whatever state it was: they call nothing that
//           allocates, and wait for nothing that the thread may hold.
#pragma once

#include <csignal>

namespace accel {

// Whether it has mended what the access ran into; then the instruction runs again.
using FaultHandler = bool (*)(const siginfo_t& info) noexcept;

enum class FaultRole { kMends, kTells };

// Adds it for SIGSEGV or SIGBUS, for good. Called once for each handler (a static of the caller).
void add_fault_handler(int signal, FaultHandler handler, FaultRole role);

// Whether faults come here first: false before the first add_fault_handler(), and when the program has set an action of its own
// since.
[[nodiscard]] bool are_faults_seen_first(int signal) noexcept;

}  // namespace accel
