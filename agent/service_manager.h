// ServiceManager: tells systemd how the agent is doing (sd_notify), when systemd started it.
//
//   READY=1 -> WATCHDOG=1 ... -> RELOADING=1 with MONOTONIC_USEC -> READY=1 ... -> STOPPING=1
//
// Without NOTIFY_SOCKET every call does nothing.
//
// Threads:  the one that runs the io_context.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

namespace accel::agent {

class ServiceManager {
 public:
  // `is_healthy` is asked before each sign of life, on the loop: a loop that hangs, or one that says no, gives none.
  ServiceManager(boost::asio::io_context& loop, std::function<bool()> is_healthy);

  void ready(const std::string& status);
  void status(const std::string& status);
  void reloading();
  void stopping(const std::string& status);
  // The manager waits `more` longer for the end that was announced.
  void extend(std::chrono::microseconds more);
  // Ends with this errno; for failures at the start.
  static void failed(int error_number, const std::string& status);

 private:
  void beat();

  boost::asio::steady_timer timer_;
  std::function<bool()> is_healthy_;
  std::chrono::microseconds watchdog_{0};  // 0: the manager watches not
};

}  // namespace accel::agent
