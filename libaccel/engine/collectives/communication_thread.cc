#include "libaccel/engine/collectives/communication_thread.h"

#include <utility>

#include "libaccel/engine/collectives/quiet_thread.h"

namespace accel {

CommunicationThread::~CommunicationThread() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  has_work_.notify_one();
  thread_.join();
}

CommunicationThread::JobPtr CommunicationThread::begin(std::function<void()> call) {
  if (!thread_.joinable())
    thread_ = start_quiet_thread("accel-comm", "reduces gradients", [this] { run(); });
  const JobPtr job(new Job(std::move(call)));
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(job);
  }
  has_work_.notify_one();
  return job;
}

void CommunicationThread::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    has_work_.wait(lock, [this] { return is_over_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const JobPtr job = jobs_.front();
    lock.unlock();
    Result<void> done = to_result(job->call_);
    job->call_ = nullptr;  // what it holds ends before anybody hears that it has run
    lock.lock();
    job->done_ = std::move(done);
    jobs_.pop_front();
    is_done_.notify_all();
  }
}

Result<void> CommunicationThread::wait(const JobPtr& job) {
  std::unique_lock lock(mutex_);
  is_done_.wait(lock, [&] { return job->done_.has_value(); });
  return *job->done_;
}

void CommunicationThread::drain() noexcept {
  std::unique_lock lock(mutex_);
  is_done_.wait(lock, [this] { return jobs_.empty(); });
}

bool CommunicationThread::has_run(const JobPtr& job) const noexcept {
  const std::lock_guard lock(mutex_);
  return job->done_.has_value();
}

bool CommunicationThread::is_idle() const noexcept {
  const std::lock_guard lock(mutex_);
  return jobs_.empty();
}

}  // namespace accel
