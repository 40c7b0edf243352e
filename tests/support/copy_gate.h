// CopyGate: stops the thread of a save before it copies a chunk (interception/state_staging.h), so that who writes comes first.
//
// Threads:  the test's. Requires: the save has ended before the gate does, or has not begun.
#pragma once

#include <condition_variable>
#include <mutex>

#include "libaccel/interception/state_staging.h"

namespace accel::test {

// Closed at first.
class CopyGate {
 public:
  CopyGate() {
    StateStaging::set_gate([this] { pass(); });
  }
  ~CopyGate() { StateStaging::set_gate(nullptr); }
  CopyGate(const CopyGate&) = delete;
  CopyGate& operator=(const CopyGate&) = delete;

  void let_through(int chunks) {
    const std::scoped_lock lock(mutex_);
    allowed_ += chunks;
    changed_.notify_all();
  }
  void open() { let_through(1 << 20); }

  // Returns when the thread has come to the gate so many times.
  void wait_for_arrivals(int times) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrivals_ >= times; });
  }

 private:
  void pass() {
    std::unique_lock lock(mutex_);
    ++arrivals_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return allowed_ > 0; });
    --allowed_;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int allowed_ = 0;
  int arrivals_ = 0;
};

}  // namespace accel::test
