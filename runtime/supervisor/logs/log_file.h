// LogFile: one stream's file, fed from a pipe without copying through this process.
//
// A file that cannot be written (disk full, folder gone, EIO) loses bytes but stops nobody: they
// are taken from the pipe and counted, once a second one more attempt is made, and a marker comes
// first when it works. A file that was deleted is made anew.
//
// A file that is full is renamed between two portions, and a new one takes its place. Where that is not possible (no
// right to rename) the file grows on instead: a disk that fills late is better than output that is lost now.
//
// Threads:  one; every call may wait for the file system.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/supervisor/lines/drop_ledger.h"
#include "runtime/supervisor/lines/line_duplicate.h"
#include "runtime/supervisor/lines/notice_board.h"
#include "runtime/supervisor/protocol/job_spec.h"
#include "runtime/unique_fd.h"

namespace accel::supervisor {

class LogFile {
 public:
  static constexpr std::size_t kStep = 256 * 1024;

  enum class Taken { kSome, kNothing, kEnd };

  // Creates the folders and the file (emptied if it exists; what was rotated of it is removed). A failure is reported
  // by a notice.
  // duplicate: lines that also go elsewhere.
  LogFile(std::filesystem::path path,
          LogRotation rotation,
          std::shared_ptr<NoticeBoard> notices,
          TimePoint now,
          std::optional<LineDuplicate> duplicate = std::nullopt);

  // Takes up to kStep bytes from a pipe whose read end is non-blocking.
  Taken take_from(int pipe, TimePoint now);

  // The stream has ended after `dropped_before` bytes that never reached the pipe.
  void finish(std::uint64_t dropped_before);

  // Bytes taken so far, written or not.
  [[nodiscard]] std::uint64_t taken() const noexcept { return taken_; }

 private:
  enum class Opening { kFirst, kAgain };

  bool open(Opening opening);
  bool try_again(TimePoint now);
  bool write_marker(std::uint64_t dropped);
  [[nodiscard]] bool at_line_start() const;
  void reopen_when_deleted(TimePoint now);
  void reopen_if_deleted();
  void remove_rotated() const;
  void rotate_when_full(TimePoint now);
  int rotate(std::uint64_t size);
  [[nodiscard]] std::uint64_t size() const;
  [[nodiscard]] std::size_t room() const;
  Taken copy_from(int pipe, std::size_t limit, TimePoint now);
  Taken discard_from(int pipe);
  Taken count(ssize_t bytes);
  void duplicate(std::string_view bytes);
  void fail(int error, TimePoint now);

  const std::filesystem::path path_;
  const LogRotation rotation_;
  std::optional<LineDuplicate> duplicate_;
  const std::shared_ptr<NoticeBoard> notices_;
  UniqueFd file_;
  DropLedger ledger_;
  TimePoint last_check_;
  std::uint64_t taken_ = 0;
  bool can_splice_;

  std::uint64_t start_ = 0;            // of the current file, in the stream
  std::deque<std::uint64_t> rotated_;  // where the files that stay begin
  std::optional<TimePoint> last_rotation_failure_;
  std::optional<TimePoint> last_rotation_notice_;
};

}  // namespace accel::supervisor
