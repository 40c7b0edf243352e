// EventFile: lines that are appended to a file beside everything else.
//
//   add() --room in the queue--> queued --the thread, in turn--> written
//               '-none: dropped   '-the disk is full, or gives an error: dropped
//
// What was dropped is counted, and the first line that can be written again is preceded by {"event":"dropped","count":N}.
// A line is there whole or not at all: what a write left of one is cut off.
//
// At kMostBytes the file becomes <path>.1, which replaces the one before: two files at most.
//
// Threads:  add() from one thread, never waits for the disk; a thread of its own (accel-events) writes.
// Source:   docs/reference/metrics.md, "Events".
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include <accel/result.h>

#include "runtime/unique_fd.h"

namespace accel::agent {

// The file operations; a seam for tests with a disk that is full.
class EventDisk {
 public:
  virtual ~EventDisk() = default;
  // For appending; created with mode 0600. Never a link. Errors  kFileIo.
  [[nodiscard]] virtual Result<UniqueFd> open(const std::string& path) = 0;
  [[nodiscard]] virtual std::size_t size_of(int fd) = 0;
  // Some or all of it. Errors  kDiskFull, kFileIo.
  [[nodiscard]] virtual Result<std::size_t> write(int fd, std::string_view bytes) = 0;
  [[nodiscard]] virtual Result<void> truncate(int fd, std::size_t bytes) = 0;
  [[nodiscard]] virtual Result<void> rename(const std::string& from, const std::string& to) = 0;
};
[[nodiscard]] EventDisk& real_event_disk();

class EventFile {
 public:
  static constexpr std::size_t kMostBytes = 16 * 1024 * 1024;
  static constexpr std::size_t kMostQueued = 16 * 1024;  // lines

  struct Options {
    std::string path;
    std::size_t most_bytes = kMostBytes;
    std::size_t most_queued = kMostQueued;
    std::function<void(const std::string&)> on_trouble =
        {};                     // on the thread; once until it works again
    EventDisk* disk = nullptr;  // nullptr: the real one
  };
  // Errors  kFileIo.
  [[nodiscard]] static Result<std::unique_ptr<EventFile>> open(Options options);
  // What is queued is tried once.
  ~EventFile();

  // `line` without its end.
  void add(std::string line);
  [[nodiscard]] std::uint64_t num_dropped() const;

 private:
  EventFile(Options options, UniqueFd file);
  void run();
  Result<void> write(std::string_view text);
  Result<void> rotate();

  const Options options_;
  EventDisk& disk_;
  UniqueFd file_;  // of the thread, as the next two
  std::size_t size_ = 0;
  bool is_in_trouble_ = false;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::string> queue_;
  std::uint64_t num_dropped_ = 0;  // ever
  std::uint64_t num_told_ = 0;     // of them, in the file
  bool is_closing_ = false;
  std::thread thread_;  // the last: it uses all of the above
};

}  // namespace accel::agent
