// CommunicationThread: runs collectives one after the other beside the thread that trains, so that a backward goes on while
// bytes are on their way.
//
//   trains   begin(bucket 0) ---- computes ---- begin(bucket 1) ---- computes ---- wait(0), wait(1)
//   thread                   bucket 0 .........                  bucket 1 ..............
//
// Jobs run in the order in which they were begun. A group allows one caller at a time, so whoever calls it himself drains the
// thread first (queued_group.h): then all ranks call in the order of their programs, with the thread and without.
//
// Threads:  one thread at a time. One thread of its own, which takes no signals and starts with the first job.
// Cost:     two hand-overs between threads for each job.
// Source:   tests/unit/libaccel/collectives/queued_group_test.cc.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <accel/result.h>

namespace accel {

class CommunicationThread {
 public:
  class Job;
  using JobPtr = std::shared_ptr<Job>;

  CommunicationThread() = default;
  // Runs what was begun to its end first.
  ~CommunicationThread();
  CommunicationThread(const CommunicationThread&) = delete;
  CommunicationThread& operator=(const CommunicationThread&) = delete;

  // Throws kProcessGroup when no thread can be started.
  [[nodiscard]] JobPtr begin(std::function<void()> call);
  // Blocks until the job has run, and returns what its call has thrown: an Error, or kInternal.
  [[nodiscard]] Result<void> wait(const JobPtr& job);
  [[nodiscard]] bool has_run(const JobPtr& job) const noexcept;
  // Blocks until all jobs have run.
  void drain() noexcept;
  [[nodiscard]] bool is_idle() const noexcept;

 private:
  void run();

  mutable std::mutex mutex_;  // of all below but thread_
  std::condition_variable has_work_;
  std::condition_variable is_done_;
  std::deque<JobPtr> jobs_;  // the first one runs
  bool is_over_ = false;
  std::thread thread_;  // joinable: it was started
};

class CommunicationThread::Job {
 private:
  friend class CommunicationThread;
  explicit Job(std::function<void()> call) : call_(std::move(call)) {}

  std::function<void()> call_;
  std::optional<Result<void>> done_;
};

}  // namespace accel
