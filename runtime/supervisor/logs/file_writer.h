// FileWriter: the threads that write all log files of a job, each file from its own pipe.
//
// A few threads, because copying into the page cache costs as much as all else together, and a single
// thread gets too small a share of a machine whose cores the workers use. A file is never served by two
// at once. The files of a job are on one file system: when that hangs, all threads do.
//
// Threads:  any thread.
// Cost:     the bytes in flight are in kernel pipes; 64 KiB of stack for a thread that met a file it
//           cannot write.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>

#include <accel/result.h>

#include "runtime/clock.h"
#include "runtime/supervisor/lines/line_duplicate.h"
#include "runtime/supervisor/lines/notice_board.h"
#include "runtime/supervisor/logs/writer_thread.h"
#include "runtime/supervisor/protocol/job_spec.h"
#include "runtime/unique_fd.h"

namespace accel::supervisor {

// A stream's way to its file: the pump fills the pipe, the writer empties it.
struct FileStage {
  std::filesystem::path path;
  LogRotation rotation;
  std::optional<LineDuplicate> duplicate;        // lines of it that go elsewhere too
  UniqueFd read_end;                             // non-blocking; the writer's
  std::atomic<std::uint64_t> dropped_at_end{0};  // set before the write end is closed
};

class FileWriter : public std::enable_shared_from_this<FileWriter> {
 public:
  // Creates `folder`; waits for that no longer than `limit`.
  // before_portion  see LogRouterOptions; may be empty.
  // Errors  kLogUnwritable. Throws  std::system_error, boost::system::system_error: no more threads or descriptors.
  static Result<std::shared_ptr<FileWriter>> start(const std::filesystem::path& folder,
                                                   int num_threads,
                                                   std::shared_ptr<NoticeBoard> notices,
                                                   std::chrono::milliseconds limit,
                                                   std::function<void()> before_portion);
  FileWriter(std::shared_ptr<NoticeBoard> notices,
             std::function<void()> before_portion);  // use start()

  // Creates the stage's file and writes what comes, until its pipe ends.
  // Errors  kSpawnFailed: the kernel does not watch the pipe.
  [[nodiscard]] Result<void> add(std::shared_ptr<FileStage> stage);

  // For files of others (error.json).
  void make_folder(std::filesystem::path folder);

  // Grows with every byte that was written or given up.
  [[nodiscard]] std::uint64_t progress() const noexcept { return progress_.load(); }

  // No add() comes after this; the threads end with the last stage.
  void finish();
  bool wait_until(TimePoint deadline) const;
  void when_done(const std::function<void()>& on_done) const;  // for each thread that ends

 private:
  struct Entry;
  void serve(const std::shared_ptr<Entry>& entry);

  const std::shared_ptr<NoticeBoard> notices_;
  const std::function<void()> before_portion_;
  std::vector<WriterThread> threads_;
  boost::asio::io_context io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  std::atomic<std::uint64_t> progress_{0};
};

}  // namespace accel::supervisor
