#include "launcher/run/stdin_watch.h"

#include <cerrno>
#include <csignal>
#include <system_error>
#include <thread>

#include <pthread.h>
#include <unistd.h>

namespace accel::launcher {
namespace {

void wait_for_the_end() {
  char dropped[4096];
  for (;;) {
    const ssize_t count = ::read(STDIN_FILENO, dropped, sizeof dropped);
    if (count > 0 || (count < 0 && errno == EINTR)) continue;
    ::kill(::getpid(), SIGTERM);
    return;
  }
}

}  // namespace

Result<void> watch_stdin() {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  Result<void> result;
  try {
    std::thread(wait_for_the_end).detach();
  } catch (const std::system_error& failure) {
    result = Error(ErrorCode::kInternal,
                   std::string("cannot watch the standard input: ") + failure.what());
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return result;
}

}  // namespace accel::launcher
