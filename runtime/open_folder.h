// OpenFolder: a folder as a descriptor, by which its files are reached whatever happens to its name.
//
// Threads:  a function without state.
#pragma once

#include <string>

#include <fcntl.h>

#include "runtime/unique_fd.h"

namespace accel {

// Empty, with errno set, when the path is no folder, is itself a link, or cannot be opened. Links on the way are followed.
[[nodiscard]] inline UniqueFd open_folder(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

}  // namespace accel
