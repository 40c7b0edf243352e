// LogBackend: one named logger on stderr.
//
// Stands between the public logger and spdlog, because spdlog and LibTorch bring different versions
// of fmt and cannot be included together: this header and its source see no LibTorch.
//
// Threads:  all functions may be called from any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <accel/types.h>

namespace accel {

class LogBackend {
 public:
  LogBackend(const std::string& name, LogLevel level);
  ~LogBackend();

  void set_level(LogLevel level);
  [[nodiscard]] bool is_enabled(LogLevel level) const;
  // Writes one line and flushes it. `file` and `line` are of the caller in the source.
  void write(LogLevel level, const char* file, int line, std::string_view text);
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  struct Impl;
  std::string name_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace accel
