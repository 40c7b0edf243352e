#include "launcher/run/interrupt_end.h"

#include <csignal>
#include <cstdio>

#include <fcntl.h>
#include <unistd.h>

#include "runtime/unique_fd.h"

namespace accel::launcher {

bool is_in_foreground() {
  const UniqueFd terminal(::open("/dev/tty", O_RDONLY | O_CLOEXEC | O_NOCTTY));
  return terminal && ::tcgetpgrp(terminal.get()) == ::getpgrp();
}

void end_by_interrupt() {
  std::fflush(nullptr);
  ::signal(SIGINT, SIG_DFL);
  ::raise(SIGINT);
}

}  // namespace accel::launcher
