// ShimSignals: what accel-shim does about signals, so that nobody ends it by accident.
//
// Who signals each process of a session or job (a worker that kills its group, scancel --signal,
// systemctl kill) reaches the shim too, and with it gone all workers are lost.
//
//   SIGCHLD SIGTERM SIGINT SIGHUP SIGUSR1 SIGQUIT   read as events
//   SIGTTOU SIGTTIN SIGTSTP SIGPIPE                 ignored
//   SIGSEGV SIGBUS SIGFPE SIGILL SIGABRT            as before when they are the shim's own fault;
//                                                   those that another process sends have no effect
//   all others but SIGKILL and SIGSTOP              blocked for good: SIGUSR2, SIGALRM, SIGXCPU, ...
//
// What is blocked is set anew in each worker (spawner.cc), and handlers end with exec.
//
// Threads:  call it once, before there are threads: they inherit the mask.
#pragma once

#include <csignal>

namespace accel::supervisor {

// Returns the signals that are to be read as events.
[[nodiscard]] sigset_t take_shim_signals() noexcept;

}  // namespace accel::supervisor
