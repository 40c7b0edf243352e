// The thread is not told of each wait: it sleeps until the one that it knew of was due, and finds another one then, whose
// time is later. Only who waits when it sleeps without end, or is due sooner, wakes it.

#include "libaccel/engine/collectives/wait_interrupter.h"

#include <csignal>
#include <string>
#include <system_error>

#include <pthread.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <accel/error.h>

namespace accel {

WaitInterrupter::WaitInterrupter() {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::string refusal;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& cause) {
    refusal = cause.what();
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!refusal.empty()) {
    throw Error(ErrorCode::kProcessGroup,
                "cannot start the thread that watches ranks of other nodes: " + refusal,
                "raise the limit on threads (`ulimit -u`, pids.max of the cgroup)");
  }
}

WaitInterrupter::~WaitInterrupter() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  is_earlier_.notify_one();
  thread_.join();
}

void WaitInterrupter::run() {
  ::pthread_setname_np(::pthread_self(), "accel-wait_interrupter");
  std::unique_lock lock(mutex_);
  while (!is_over_) {
    if (waited_ && Clock::now() >= due_) {
      waited_->abort();
      due_ = Clock::now() + every_;
    }
    wakes_ = waited_ ? due_ : Clock::time_point::max();
    if (waited_) {
      is_earlier_.wait_until(lock, wakes_);
    } else {
      is_earlier_.wait(lock);
    }
  }
}

void WaitInterrupter::begin(const WorkPtr& work, std::chrono::microseconds at_most) {
  const Clock::time_point due = Clock::now() + at_most;
  bool is_earlier = false;
  {
    const std::lock_guard lock(mutex_);
    waited_ = work;
    every_ = at_most;
    due_ = due;
    is_earlier = due < wakes_;
    if (is_earlier) wakes_ = due;
  }
  if (is_earlier) is_earlier_.notify_one();
}

void WaitInterrupter::end() {
  const std::lock_guard lock(mutex_);
  waited_.reset();
}

bool WaitInterrupter::wait(const WorkPtr& work, std::chrono::microseconds at_most) {
  begin(work, at_most);
  try {
    const bool is_done = work->wait(kNoTimeout);
    end();
    return is_done;
  } catch (...) {
    end();
    throw;
  }
}

void WaitInterrupter::end_wait() noexcept {
  const std::lock_guard lock(mutex_);
  if (waited_) waited_->abort();
}

}  // namespace accel
