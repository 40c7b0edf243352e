#include "libaccel/engine/collectives/quiet_thread.h"

#include <csignal>
#include <string>
#include <system_error>
#include <utility>

#include <pthread.h>

#include <accel/error.h>

namespace accel {

std::thread start_quiet_thread(const char* name,
                               std::string_view purpose,
                               std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  std::string refusal;
  try {
    thread = std::thread([name, body = std::move(body)] {
      ::pthread_setname_np(::pthread_self(), name);
      body();
    });
  } catch (const std::system_error& cause) {
    refusal = cause.what();
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (refusal.empty()) return thread;
  throw Error(ErrorCode::kProcessGroup,
              "cannot start the thread that " + std::string(purpose) + ": " + refusal,
              "raise the limit on threads (`ulimit -u`, pids.max of the cgroup)");
}

}  // namespace accel
