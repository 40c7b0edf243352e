// TerminalText: what a terminal can show, by its size and its environment.
//
// Threads:  any.
// Source:   POSIX.1-2017, 8.2 (LC_ALL before LC_CTYPE before LANG); no-color.org.
#pragma once

#include <cstddef>
#include <string>

#include <sys/ioctl.h>

#include <accel/env_contract.h>

#include "runtime/environment_value.h"
#include "runtime/text/letter_case.h"

namespace accel::launcher {

// 0: it is no terminal, or does not say.
[[nodiscard]] inline std::size_t terminal_columns(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

// Whether the locale's letters are UTF-8.
[[nodiscard]] inline bool has_utf8_locale(const EnvMap& environment) {
  for (const char* const name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string value = value_in(environment, name);
    if (value.empty()) continue;
    const std::string locale = lowercase(value);
    return locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
  }
  return false;
}

// Whether a terminal with this environment is to show colours.
[[nodiscard]] inline bool wants_colour(const EnvMap& environment) {
  return value_in(environment, "NO_COLOR").empty() && value_in(environment, "TERM") != "dumb";
}

}  // namespace accel::launcher
