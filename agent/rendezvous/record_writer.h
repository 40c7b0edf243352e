// RecordWriter: writes the coordinator's records on a thread of its own, so that no disk and no etcd holds up the loop.
//
// Records are written, and answered, in the order in which they came.
//
// Threads:  constructed, used and destroyed on the loop; answers come on the loop.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include <boost/asio/io_context.hpp>

#include "agent/coordinator/journal/state_store.h"

namespace accel::agent {

class RecordWriter {
 public:
  using Answer = std::function<void(const Result<void>&)>;

  RecordWriter(boost::asio::io_context& loop, std::unique_ptr<StateStore> store);
  // Waits until everything is written or refused, for as long as the store takes. Nothing is answered any more.
  ~RecordWriter();

  void write(Record record, bool sync, Answer answer);

  // Takes nothing more and answers nothing more; what waits is written. `done`: the destructor will not wait.
  void close(std::function<void()> done);

 private:
  struct Job {
    Record record;
    bool sync = false;
    Answer answer;
  };
  void run();

  boost::asio::io_context& loop_;
  std::unique_ptr<StateStore> store_;
  std::shared_ptr<bool> is_heard_ = std::make_shared<bool>(true);  // of the loop alone
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> queue_;
  bool is_closing_ = false;
  std::function<void()> done_;
  std::thread thread_;
};

}  // namespace accel::agent
