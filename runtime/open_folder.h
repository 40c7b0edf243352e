// open_folder: a folder as a descriptor, by which its files are reached whatever happens to its name.
#pragma once

#include <string>

#include <fcntl.h>

#include "runtime/unique_fd.h"

namespace accel {

// None, and errno, when it is no folder, is a link, or cannot be opened.
[[nodiscard]] inline UniqueFd open_folder(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

}  // namespace accel
