// AppendFile: a file that grows, and that keeps what the disk does not take until it does.
//
// Threads:  one at a time.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include "runtime/unique_fd.h"

namespace accel::tracking {

// What could not be handed to the kernel, and why.
struct Backlog {
  std::size_t bytes = 0;
  int error = 0;  // an errno
  std::string path;
};

enum class FileForm { kBinary, kLines };

class AppendFile {
 public:
  // kLines: a last line that has no end, of a process that was killed, gets one.
  explicit AppendFile(std::filesystem::path path, FileForm form = FileForm::kBinary)
      : path_(std::move(path)), form_(form) {}

  void append(std::string_view bytes) { pending_ += bytes; }
  // Opens the file if need be, its folders too, and writes what is pending: all of it, or up to the first refusal. What was
  // written is never written again.
  Backlog drain();

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] int fd() const noexcept { return file_.get(); }  // -1 before the first drain()
  // Closes the file: the next drain() opens it anew.
  void close() { file_.reset(); }

 private:
  [[nodiscard]] int open();

  std::filesystem::path path_;
  FileForm form_;
  UniqueFd file_;
  std::string pending_;
};

}  // namespace accel::tracking
