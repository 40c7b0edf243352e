#include "libaccel/engine/collectives/wait_interrupter.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace accel::wait_interrupter_test {
namespace {

using namespace std::chrono_literals;

// As Gloo's: abort() ends one wait, that which goes on or the next one.
class FakeWork : public c10d::Work {
 public:
  bool wait(std::chrono::milliseconds) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_aborted_ || is_done_ || is_lost_; });
    if (is_lost_) throw std::runtime_error("Connection closed by peer");
    if (!is_aborted_) return true;
    is_aborted_ = false;
    return false;
  }
  void abort() override { set(is_aborted_); }
  void become_done() { set(is_done_); }
  void become_lost() { set(is_lost_); }

 private:
  void set(bool& what) {
    const std::lock_guard lock(mutex_);
    what = true;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_aborted_ = false;
  bool is_done_ = false;
  bool is_lost_ = false;
};

TEST(WaitInterrupter, EndsAWaitThatIsLateAndTheWorkCanBeAwaitedAgain) {
  WaitInterrupter wait_interrupter;
  const auto work = c10::make_intrusive<FakeWork>();

  EXPECT_FALSE(wait_interrupter.wait(work, 1ms));
  EXPECT_FALSE(wait_interrupter.wait(work, 1ms));
  std::jthread end([&] { work->become_done(); });
  while (!wait_interrupter.wait(work, 100ms)) std::this_thread::yield();
}

// Were it not, each of the second waits would last an hour.
TEST(WaitInterrupter, IsOnTimeAfterALongerWaitThatEnded) {
  WaitInterrupter wait_interrupter;
  for (int round = 0; round < 20; ++round) {
    const auto done = c10::make_intrusive<FakeWork>();
    done->become_done();
    EXPECT_TRUE(wait_interrupter.wait(done, 1h));
    EXPECT_FALSE(wait_interrupter.wait(c10::make_intrusive<FakeWork>(), 100us));
  }
}

TEST(WaitInterrupter, PassesOnWhatTheWorkThrows) {
  WaitInterrupter wait_interrupter;
  const auto work = c10::make_intrusive<FakeWork>();
  work->become_lost();
  EXPECT_THROW((void)wait_interrupter.wait(work, 1h), std::runtime_error);
}

TEST(WaitInterrupter, EndsTheWaitOfAnotherThread) {
  WaitInterrupter wait_interrupter;
  std::jthread other([&](const std::stop_token& is_over) {
    while (!is_over.stop_requested()) wait_interrupter.end_wait();
  });
  EXPECT_FALSE(wait_interrupter.wait(c10::make_intrusive<FakeWork>(), 1h));
}

}  // namespace
}  // namespace accel::wait_interrupter_test
