// ServiceManager: tells systemd how the agent is doing (sd_notify), when systemd started it.
//
//   READY=1 -> WATCHDOG=1 ... -> RELOADING=1 with MONOTONIC_USEC -> READY=1 ... -> STOPPING=1
//
// Descriptors that are kept in its store (FDSTORE) come back to the next agent by their names. Without NOTIFY_SOCKET every
// call does nothing.
//
// Threads:  take() before there are others; the rest from any one.
#pragma once

#include <chrono>
#include <map>
#include <string>

#include "runtime/unique_fd.h"

namespace accel::agent {

class ServiceManager {
 public:
  ServiceManager();

  // How long the manager waits for a sign of life; 0: it does not watch.
  [[nodiscard]] std::chrono::microseconds watchdog() const { return watchdog_; }
  void sign_of_life();

  // Lets the manager keep a copy of `fd` under `name`, until the service is stopped for good. Whether there is a manager
  // that may.
  bool keep(int fd, const std::string& name);
  // The descriptor that was kept under `name`; an empty one when there is none. Each is given once.
  [[nodiscard]] UniqueFd take(const std::string& name);

  void ready(const std::string& status);
  void status(const std::string& status);
  void reloading();
  void stopping(const std::string& status);
  // The manager waits `more` longer for the end that was announced.
  void extend(std::chrono::microseconds more);
  // Ends with this errno; for failures at the start.
  static void failed(int error_number, const std::string& status);

 private:
  std::chrono::microseconds watchdog_{0};
  std::multimap<std::string, UniqueFd> kept_;
};

}  // namespace accel::agent
