// DashboardLogs: reads the end of outputs for the page, one of each user at a time.
//
// A user's output may lie on a file system that does not answer. Whoever asks for it is told so after the patience. At most one
// read of the page then stands before what else is read of that user (FileReaders); those that wait behind it are not begun.
//
// Threads:  on the loop; reads run on threads of FileReaders.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>

#include <boost/asio/io_context.hpp>
#include <sys/types.h>

#include "agent/files/file_readers.h"
#include "agent/main/timed_answer.h"
#include "runtime/supervisor/dashboard/dashboard_server.h"

namespace accel::agent {

class DashboardLogs {
 public:
  static constexpr std::chrono::milliseconds kLogPatience{3'000};

  // Lives as long as the loop runs; `files` longer.
  DashboardLogs(boost::asio::io_context& loop,
                FileReaders& files,
                std::chrono::milliseconds patience = kLogPatience);
  DashboardLogs(const DashboardLogs&) = delete;
  DashboardLogs& operator=(const DashboardLogs&) = delete;

  // Calls `read` on a thread when it is its turn; what it uses must be its own. Calls `done` once on the loop: with what was
  // read, or with a notice that the file system does not answer.
  void read(uid_t owner,
            std::function<supervisor::LogTail()> read,
            std::function<void(supervisor::LogTail)> done);

 private:
  struct Wish {
    std::function<supervisor::LogTail()> read;
    std::shared_ptr<TimedAnswer<supervisor::LogTail>> answer;
  };
  void begin_next(uid_t owner);

  boost::asio::io_context& loop_;
  FileReaders& files_;
  const std::chrono::milliseconds patience_;
  std::map<uid_t, std::deque<Wish>> waiting_;  // of users one of whose reads is under way
};

}  // namespace accel::agent
