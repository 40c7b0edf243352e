// SideReader: reads files beside the launcher's loop, one after another.
//
// A file system may not answer (a server that is gone), and a folder may be very large. The loop has workers to look after, and the
// launcher has to end: nobody waits for the thread, not even the end of the program. So what a read uses must be its own.
// An agent serves many users, and reads for each in turn: agent/files/file_readers.h.
//
// Threads:  constructed, used and destroyed on the loop; reads run on a thread that lives while there are any.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include <boost/asio/io_context.hpp>

namespace accel::launcher {

class SideReader {
 public:
  static constexpr std::size_t kMostWaiting = 8;

  // `failure`: what the read threw, or why it was not begun; empty: it was done.
  using Done = std::function<void(const std::string& failure)>;

  explicit SideReader(boost::asio::io_context& loop);
  // Nothing that waits is read any more, and no `done` is called.
  ~SideReader();
  SideReader(const SideReader&) = delete;
  SideReader& operator=(const SideReader&) = delete;

  // Calls `read` on the thread, then `done` on the loop. Where kMostWaiting wait already, or no thread can be started: `done` at once.
  void add(std::function<void()> read, Done done);

 private:
  struct Shared;
  static void work(const std::shared_ptr<Shared>& shared);

  std::shared_ptr<Shared> shared_;  // with the thread
};

}  // namespace accel::launcher
