// Threads that serve one stream of batches after the other.

#include <utility>

#include <accel/detail/batch_stream.h>

namespace accel::detail {

WorkerPool::WorkerPool(int num_workers) {
  for (int i = 0; i < num_workers; ++i) threads_.emplace_back([this] { serve(); });
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
}

bool WorkerPool::begin(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (work_) return false;
    work_ = std::move(work);
    num_busy_ = static_cast<int>(threads_.size());
    ++round_;
  }
  changed_.notify_all();
  return true;
}

void WorkerPool::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return num_busy_ == 0; });
  work_ = {};
}

void WorkerPool::serve() {
  std::int64_t round = 0;  // that this thread has served
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || round_ != round; });
    if (round_ == round) return;
    round = round_;
    lock.unlock();
    work_();
    lock.lock();
    if (--num_busy_ == 0) changed_.notify_all();
  }
}

}  // namespace accel::detail
