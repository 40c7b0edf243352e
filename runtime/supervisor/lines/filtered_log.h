// FilteredLog: one file with lines that several streams share.
//
// It is emptied when it is opened, and each portion is appended in one write(2), so that lines of streams do not mix. A file
// that cannot be written is told once, and what belongs there is lost: the lines are in the logs of their streams too.
//
// Threads:  any; may wait for the file system.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <string_view>

#include "runtime/supervisor/lines/notice_board.h"
#include "runtime/unique_fd.h"

namespace accel::supervisor {

class FilteredLog {
 public:
  // Touches no file.
  FilteredLog(std::filesystem::path path, std::shared_ptr<NoticeBoard> notices)
      : path_(std::move(path)), notices_(std::move(notices)) {}

  // Makes the file and its folder; the first call counts.
  void open();
  void append(std::string_view lines);

 private:
  void fail(int error);

  const std::filesystem::path path_;
  const std::shared_ptr<NoticeBoard> notices_;
  std::mutex mutex_;
  bool is_opened_ = false;
  bool has_failed_ = false;
  UniqueFd file_;
};

}  // namespace accel::supervisor
