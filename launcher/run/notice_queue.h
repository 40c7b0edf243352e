// NoticeQueue: lines for the user that are written while a job runs, without ever waiting for him.
//
// The console may be a pipe whose reader has stopped, or a terminal under Ctrl-S. A launcher that waited
// there would not hear a Ctrl-C. So a line goes out when poll() says that there is room; what found none
// by the end of the job stands before the report. A user who reads nothing for days gets the newest 64 KiB, and how many
// lines are missing before them.
//
// Threads:  one thread.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>

namespace accel::launcher {

class NoticeQueue {
 public:
  explicit NoticeQueue(int fd) : fd_(fd) {}

  // Shows the line now if it can be done without waiting, else later.
  void push(std::string_view line);

  // To be polled for POLLOUT; -1 when nothing waits to be written.
  [[nodiscard]] int waiting_fd() const noexcept { return lines_.empty() ? -1 : fd_; }

  // Writes what fits.
  void write_some();

  // What has not been written; it is forgotten here.
  [[nodiscard]] std::string take_unwritten();

 private:
  void drop_until_it_fits(std::size_t num_bytes);
  void take_first();

  const int fd_;
  std::deque<std::string> lines_;  // with their newlines
  std::size_t num_bytes_ = 0;      // of all of them
  std::size_t num_written_ = 0;    // of the first
  std::size_t num_dropped_ = 0;    // behind the first, and not told of yet
};

}  // namespace accel::launcher
