// WriterThread: a thread that may hang in a system call without taking the process with it.
//
// A writer can sit in write() on a dead network file system for ever. So nobody joins it: it keeps
// what it uses alive by shared ownership, says when it is done, and whoever closes it waits for
// that only as long as he likes.
//
// Threads:  start() from any thread, once; all signals are blocked in the new one (a closed pipe
//           then gives EPIPE, and the program's signals go to the thread that expects them).
#pragma once

#include <condition_variable>
#include <csignal>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include <pthread.h>

#include "runtime/clock.h"

namespace accel::supervisor {

class WriterThread {
 public:
  // name  at most 15 characters, shown by ps -L.
  // Throws  std::system_error: no more threads can be had.
  void start(const char* name, std::function<void()> body) {
    state_ = std::make_shared<State>();
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const auto restore = [&before](void*) { pthread_sigmask(SIG_SETMASK, &before, nullptr); };
    const std::unique_ptr<void, decltype(restore)> restored(this, restore);
    std::thread([name, body = std::move(body), state = state_]() mutable {
      pthread_setname_np(pthread_self(), name);
      body();
      body = nullptr;  // what the body owns goes before anybody hears that it is done
      const std::lock_guard lock(state->mutex);
      state->is_done = true;
      state->done.notify_all();
      if (state->on_done) state->on_done();
    }).detach();
  }

  // Calls `on_done` on the thread when the body has returned, or now when it has already. It must
  // neither wait nor call this object. An empty one takes it back: no call comes after that.
  void when_done(std::function<void()> on_done) const {
    if (!state_) return;
    const std::lock_guard lock(state_->mutex);
    state_->on_done = std::move(on_done);
    if (state_->is_done && state_->on_done) state_->on_done();
  }

  // True once the body has returned; at once when it was never started.
  bool wait_until(TimePoint deadline) const {
    if (!state_) return true;
    std::unique_lock lock(state_->mutex);
    return state_->done.wait_until(lock, deadline, [this] { return state_->is_done; });
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable done;
    bool is_done = false;
    std::function<void()> on_done;
  };

  std::shared_ptr<State> state_;
};

}  // namespace accel::supervisor
