// The thread is not told of each wait: it sleeps until the one that it knew of was due, and finds another one then, whose
// time is later. Only who waits when it sleeps without end, or is due sooner, wakes it.

#include "libaccel/engine/collectives/wait_interrupter.h"

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "libaccel/engine/collectives/quiet_thread.h"

namespace accel {

WaitInterrupter::WaitInterrupter()
    : thread_(start_quiet_thread("accel-wait", "watches ranks of other nodes", [this] { run(); })) {
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
