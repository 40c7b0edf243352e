// WaitInterrupter: ends a wait for a c10d::Work now and then, so that who waits can look around and wait on.
//
// A wait in Gloo ends with its bytes or with its connection, and one that runs into its timeout closes all connections of the
// process. But Work::abort() of another thread ends one wait and harms nothing: the work may be waited for again. This is
// that other thread.
//
//   waiter   wait(work, 100 ms) ----> false: looks around ----> wait(work, 100 ms) ----> true: the work is done
//   wait_interrupter            ... 100 ms, work->abort()      sleeps while nobody waits
//
// Threads:  wait() one thread at a time; end_wait() any. One thread of its own, which takes no signals.
// Cost:     of a wait that ends at once two locks; while waits go on the thread wakes once every `at_most`.
// Source:   tests/unit/libaccel/collectives/wait_interrupter_test.cc.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Work;
}

namespace accel {

class WaitInterrupter {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // Throws kProcessGroup when no thread can be started.
  WaitInterrupter();
  ~WaitInterrupter();
  WaitInterrupter(const WaitInterrupter&) = delete;
  WaitInterrupter& operator=(const WaitInterrupter&) = delete;

  // Whether the work is done; false after `at_most`, or end_wait(), and rarely sooner. Throws what the work throws.
  [[nodiscard]] bool wait(const WorkPtr& work, std::chrono::microseconds at_most);
  // Ends the wait that goes on, when there is one.
  void end_wait() noexcept;

 private:
  using Clock = std::chrono::steady_clock;

  void run();
  void begin(const WorkPtr& work, std::chrono::microseconds at_most);
  void end();

  std::mutex mutex_;  // of all below
  std::condition_variable is_earlier_;
  WorkPtr waited_;
  std::chrono::microseconds every_{0};
  Clock::time_point due_;                               // of waited_
  Clock::time_point wakes_ = Clock::time_point::max();  // when the thread looks next
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace accel
