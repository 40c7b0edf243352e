// QuietProcess: a process between a program and its workers, which no signal but SIGKILL is for.
//
// Who stops a job often signals each of its processes (scancel, systemctl stop, kill with a group). Those that only pass
// orders on must neither end by that, since the job would be lost with them, nor run a copy of the program's handlers.
// Their signals are blocked, not ignored: the mask is set anew in each worker (spawn(), enter_worker()) and in
// accel-shim, while what is ignored would stay so.
//
// Threads:  QuietSpan is of the calling thread. forget_handlers() is for processes with one thread.
#pragma once

#include <csignal>

namespace accel::supervisor {

// All signals of the calling thread are blocked for the life of this value. Around a fork: the copy is quiet from its
// first instruction, and stays so when the value never ends there.
class QuietSpan {
 public:
  QuietSpan() noexcept;
  ~QuietSpan();
  QuietSpan(const QuietSpan&) = delete;
  QuietSpan& operator=(const QuietSpan&) = delete;

 private:
  sigset_t before_;
};

// Every signal that is handled has its default action again; what is ignored stays so.
void forget_handlers() noexcept;

}  // namespace accel::supervisor
