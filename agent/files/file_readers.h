// FileReaders: reads beside the loop, one at a time of each user, and the users in turn.
//
// A user's files may lie on a file system that does not answer (one that it serves itself, a server that is gone). A read that
// hangs keeps one thread and holds up its own user; with as many such users as there are threads, others wait too. Nobody
// waits for such a thread, not even the end of the program: so what a read uses must be its own.
//
// Threads:  constructed, used and destroyed on the loop; reads run on threads of their own.
#pragma once

#include <functional>
#include <memory>

#include <boost/asio/io_context.hpp>
#include <sys/types.h>

namespace accel::agent {

class FileReaders {
 public:
  static constexpr int kMostThreads = 16;

  explicit FileReaders(boost::asio::io_context& loop, int most_threads = kMostThreads);
  // Nothing that waits is read any more, and no `done` is called.
  ~FileReaders();
  FileReaders(const FileReaders&) = delete;
  FileReaders& operator=(const FileReaders&) = delete;

  // Calls `read` on a thread when it is this user's turn, then `done` on the loop.
  void add(uid_t user, std::function<void()> read, std::function<void()> done);

 private:
  struct Shared;
  static void work(const std::shared_ptr<Shared>& shared);

  std::shared_ptr<Shared> shared_;  // with the threads
};

}  // namespace accel::agent
