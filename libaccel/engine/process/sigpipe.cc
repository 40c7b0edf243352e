#include "libaccel/engine/process/sigpipe.h"

#include <csignal>

namespace accel {

void ignore_sigpipe_unless_handled() noexcept {
  struct sigaction now {};
  if (::sigaction(SIGPIPE, nullptr, &now) != 0) return;
  if ((now.sa_flags & SA_SIGINFO) != 0 || now.sa_handler != SIG_DFL) return;
  struct sigaction ignored {};
  ignored.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignored, nullptr);
}

}  // namespace accel
