#include "agent/files/open_files.h"

#include <algorithm>
#include <climits>

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>

namespace accel::agent {

int count_open_files() {
  rlimit files{};
  DIR* folder = ::opendir("/proc/self/fd");
  // Not even one more can be opened, or there is no /proc: as many as there may be.
  if (folder == nullptr)
    return ::getrlimit(RLIMIT_NOFILE, &files) == 0
               ? static_cast<int>(std::min<rlim_t>(files.rlim_cur, INT_MAX))
               : 0;
  int count = -3;  // ".", ".." and the folder itself
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

int open_files_left() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur > INT_MAX) return INT_MAX;
  return std::max(0, static_cast<int>(files.rlim_cur) - count_open_files());
}

int null_device() {
  static const int fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  return fd;
}

}  // namespace accel::agent
