#include "runtime/supervisor/kernel/quiet_process.h"

namespace accel::supervisor {

QuietSpan::QuietSpan() noexcept {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before_);
}

QuietSpan::~QuietSpan() {
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void forget_handlers() noexcept {
  struct sigaction by_default {};
  by_default.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction current {};
    if (::sigaction(signal, nullptr, &current) != 0 || current.sa_handler == SIG_IGN) continue;
    ::sigaction(signal, &by_default, nullptr);
  }
}

}  // namespace accel::supervisor
