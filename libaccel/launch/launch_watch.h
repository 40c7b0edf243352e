// LaunchWatch: what the calling thread does while workers run.
//
// Waits for the end of the job, and asks for it when the program is asked to stop: by a signal that it does not handle
// itself, or through a stop_token.
//
// Threads:  one launch of the process at a time; the signals are of the whole process.
#pragma once

#include <csignal>
#include <stop_token>

#include <accel/result.h>

#include "runtime/supervisor/owner/worker_host.h"

namespace accel::launch {

// SIGINT, SIGTERM and SIGHUP that would end the program are noted instead, for the life of this value; then the first
// that came acts on the program.
class HeldSignals {
 public:
  HeldSignals();
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  // Readable when one came or wake() was called.
  [[nodiscard]] int fd() const noexcept;
  void wake() const noexcept;

  // Signals that have come since the last call; 0: none.
  struct Noted {
    int first = 0;
    int count = 0;
  };
  [[nodiscard]] Noted take();

 private:
  static constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};

  struct sigaction before_[std::size(kSignals)] = {};
  bool is_held_[std::size(kSignals)] = {};
};

// Writes restarts and notices to stderr. Errors  those of WorkerHost::next_event().
[[nodiscard]] Result<supervisor::JobOutcome> watch_job(supervisor::WorkerHost& host,
                                                       HeldSignals& signals,
                                                       std::stop_token stop);

}  // namespace accel::launch
