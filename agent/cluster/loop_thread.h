// LoopThread: an event loop with a thread of its own.
//
// Threads:  constructed, started and destroyed by one thread; what is posted runs on its own.
#pragma once

#include <string>
#include <thread>
#include <utility>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <pthread.h>

namespace accel::agent {

class LoopThread {
 public:
  // name  of the thread, 15 bytes at most.
  explicit LoopThread(std::string name) : name_(std::move(name)) {}
  ~LoopThread() { stop(); }
  LoopThread(const LoopThread&) = delete;
  LoopThread& operator=(const LoopThread&) = delete;

  [[nodiscard]] boost::asio::io_context& loop() { return loop_; }

  // Until then what is posted waits.
  void start() {
    thread_ = std::thread([this] {
      ::pthread_setname_np(::pthread_self(), name_.c_str());
      loop_.run();
    });
  }
  // When it returns, nothing runs there any more; what waits never will.
  void stop() {
    loop_.stop();
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::string name_;
  boost::asio::io_context loop_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> stays_{
      loop_.get_executor()};
  std::thread thread_;
};

}  // namespace accel::agent
