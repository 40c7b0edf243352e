#include "runtime/supervisor/kernel/shim_signals.h"

#include <array>

#include <unistd.h>

namespace accel::supervisor {
namespace {

constexpr std::array kFaults = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

// What a sanitizer, or nobody, does about them. A handler cannot be given anything.
std::array<struct sigaction, kFaults.size()> actions_before;

// A fault of our own happens again when the handler returns, then with the action of before; what we
// raised ourselves (abort) is raised again.
void on_fault(int signal, siginfo_t* info, void* /*context*/) {
  const bool is_sent = info->si_code <= 0;
  if (is_sent && info->si_pid != ::getpid()) return;
  for (std::size_t i = 0; i < kFaults.size(); ++i) {
    if (kFaults[i] == signal) ::sigaction(signal, &actions_before[i], nullptr);
  }
  if (is_sent) ::raise(signal);
}

}  // namespace

sigset_t take_shim_signals() noexcept {
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  for (std::size_t i = 0; i < kFaults.size(); ++i)
    ::sigaction(kFaults[i], &action, &actions_before[i]);
  sigset_t blocked;
  ::sigfillset(&blocked);
  for (const int signal : kFaults) ::sigdelset(&blocked, signal);
  ::sigprocmask(SIG_SETMASK, &blocked, nullptr);
  // The shim may write to a terminal whose foreground group it is not in, and to pipes without readers.
  for (const int signal : {SIGTTOU, SIGTTIN, SIGTSTP, SIGPIPE}) ::signal(signal, SIG_IGN);
  sigset_t events;
  ::sigemptyset(&events);
  for (const int signal : {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGQUIT})
    ::sigaddset(&events, signal);
  return events;
}

}  // namespace accel::supervisor
