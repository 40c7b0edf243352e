// FileNotice: what a configuration file says without effect or twice. It is a warning, and an error with --strict.
//
// Threads:  pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <accel/error.h>

namespace accel::launcher {

// "c.yaml:2".
[[nodiscard]] std::string place_of_line(const std::string& path, int line);

struct FileNotice {
  std::string what;     // "c.yaml:2: ipex_config has no effect", with file and line
  std::string outcome;  // what is done about it, or what holds instead
  std::string remedy;   // what to change in the file

  // The warning, in one line.
  [[nodiscard]] std::string text() const { return what + ": " + outcome; }
};

// A key that stands on two lines.
[[nodiscard]] FileNotice repeated_key(const std::string& path,
                                      const std::string& key,
                                      int first_line,
                                      int second_line);
// A key that its section does not have.
[[nodiscard]] FileNotice unknown_key(const std::string& path,
                                     const std::string& section,
                                     const std::string& key,
                                     int line);
// A key of older versions, and what to know about it.
[[nodiscard]] FileNotice retired_key(const std::string& path,
                                     const std::string& key,
                                     int line,
                                     std::string_view advice);
// A key of older versions that still holds.
[[nodiscard]] FileNotice renamed_key(const std::string& path,
                                     const std::string& key,
                                     int line,
                                     const std::string& present_name);
// A value of older versions that has another name now.
[[nodiscard]] FileNotice renamed_value(const std::string& path,
                                       const std::string& key,
                                       int line,
                                       const std::string& value,
                                       const std::string& present);

[[nodiscard]] std::vector<std::string> texts_of(const std::vector<FileNotice>& notices);

// kConfigInvalidValue: all of them. Requires: not empty.
[[nodiscard]] Error strict_error(const std::vector<FileNotice>& notices);

}  // namespace accel::launcher
