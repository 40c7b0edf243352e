// WriterThread: a thread that may hang in a system call without taking the process with it.
//
// A writer can sit in write() on a dead network file system for ever. So nobody joins it: it keeps
// what it uses alive by shared ownership, says when it is done, and whoever closes it waits for
// that only as long as he likes.
//
// Threads:  start() from any thread; all signals are blocked in the new one (a closed pipe then
// gives
//           EPIPE, and the signals of the program go to the thread that expects them).
#pragma once

#include <chrono>
#include <csignal>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>

#include <pthread.h>

#include "runtime/clock.h"

namespace accel::supervisor {

class WriterThread {
 public:
  // name  at most 15 characters, shown by ps -L.
  void start(const char* name, std::function<void()> body) {
    std::promise<void> promise;
    done_ = promise.get_future().share();
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([name, body = std::move(body), promise = std::move(promise)]() mutable {
      pthread_setname_np(pthread_self(), name);
      body();
      body = nullptr;  // what the body owns goes before anybody hears that it is done
      promise.set_value_at_thread_exit();
    }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  // True once the body has returned; at once when it was never started.
  bool wait_until(TimePoint deadline) const {
    return !done_.valid() || done_.wait_until(deadline) == std::future_status::ready;
  }

 private:
  std::shared_future<void> done_;
};

}  // namespace accel::supervisor
