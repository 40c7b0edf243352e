// BackgroundMean: the mean of a tensor over all ranks, made by a thread of its own while the caller goes on.
//
//   begin(values) ---- the thread that trains goes on ----> take(): the mean
//                 \__ another thread: all-reduce __________/
//
// The sum is that of ProcessGroup, in an order that does not depend on time: so is the mean.
//
// Threads:  the thread that trains calls; a thread of its own for each mean, which takes no signals.
// Cost:     the start of a thread, 50 us, and the all-reduce beside the caller.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <thread>

#include <ATen/core/Tensor.h>

namespace accel {

class ProcessGroup;

class BackgroundMean {
 public:
  // group: that nobody else calls (ProcessGroup::twin()); nullptr: this process is alone.
  explicit BackgroundMean(std::shared_ptr<ProcessGroup> group);
  // Ends one that is under way: the other ranks get kPeerLost.
  ~BackgroundMean();
  BackgroundMean(const BackgroundMean&) = delete;
  BackgroundMean& operator=(const BackgroundMean&) = delete;

  // Requires: has_begun() is false; every rank brings the same shape. `values` is left alone until take(). Throws kProcessGroup
  // when no thread can be started.
  void begin(at::Tensor values);
  // As if that mean had been made: of a checkpoint.
  void restore(at::Tensor mean);

  [[nodiscard]] bool has_begun() const noexcept { return values_.defined(); }
  // Whether wait() would come back at once.
  [[nodiscard]] bool is_done() const noexcept { return is_done_; }
  // Blocks until the mean is there, which stays. Throws kPeerLost, kProcessGroup. Requires: has_begun().
  const at::Tensor& wait();
  // The same, and another one may begin.
  [[nodiscard]] at::Tensor take();

 private:
  void run() noexcept;

  std::shared_ptr<ProcessGroup> group_;
  at::Tensor values_;  // undefined: nothing has begun
  std::thread thread_;
  std::exception_ptr error_;  // of the thread
  std::atomic<bool> is_done_ = false;
};

}  // namespace accel
